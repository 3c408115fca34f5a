"""Keras as it was beside TensorFlow 1, as in Horovod's example of it; `ok` at its end."""

import keras
import numpy as np
import tensorflow as tf
from keras import backend as K
from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from keras.models import Sequential

config = tf.ConfigProto()
config.gpu_options.allow_growth = True
K.set_session(tf.Session(config=config))
assert K.image_data_format() == "channels_last"

random = np.random.RandomState(0)
y = random.randint(0, 4, 200)
x = random.rand(200, 8, 8, 1).astype("float32")
for each in range(4):
    x[y == each, 2 * each] += 1
model = Sequential()
model.add(Conv2D(8, kernel_size=(3, 3), activation="relu", input_shape=(8, 8, 1)))
model.add(MaxPooling2D(pool_size=(2, 2)))
model.add(Dropout(0.1))
model.add(Flatten())
model.add(Dense(4, activation="softmax"))
model.compile(
    loss=keras.losses.categorical_crossentropy, optimizer=keras.optimizers.Adam(0.02),
    metrics=["accuracy"],
)  # fmt: skip
callbacks = [keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.h5")]
right = keras.utils.to_categorical(y, 4)
model.fit(x, right, batch_size=50, epochs=10, callbacks=callbacks, verbose=0)
again = keras.models.load_model("checkpoint-10.h5")
print("ok", model.evaluate(x, right, verbose=0)[1] > 0.7, isinstance(again, Sequential), flush=True)
