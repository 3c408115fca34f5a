"""TensorFlow's tensors in collectives: what `shanty.tensorflow` and `shanty.keras` have in common.

`ops` are Horovod's operations, `mpi_ops` the same with gradients, `steps` puts them into graphs,
`gradients` reduces those of a tape or an optimizer. Nothing here knows Keras.
"""

from shanty.collectives import call_sites
from shanty.tensorflow_ops import installed

call_sites.hide(installed.tensorflow.__file__, __file__)
