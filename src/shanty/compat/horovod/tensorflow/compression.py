"""`horovod.tensorflow.compression`: Horovod's names for smaller gradients on their way."""

from shanty.tensorflow.compression import Compression as Compression
from shanty.tensorflow.compression import Compressor as Compressor
from shanty.tensorflow.compression import FP16Compressor as FP16Compressor
from shanty.tensorflow.compression import NoneCompressor as NoneCompressor
