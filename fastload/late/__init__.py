"""Lazy images: JPEG and PNG files that a sample opens through Pillow are decoded when their pixels are needed.

So are the records that :class:`~fastload.images.PackedImages` opens itself. It is on while a sample is made
(:class:`LateSamples`); the samples stay the same, bit for bit.

``PIL.Image.open`` gives an image whose file is read, checked and closed as Pillow does, but not decoded (a PNG file is
inflated then, since damage anywhere is an error). ``convert``,
``crop``, ``resize`` and flips are recorded (:class:`~fastload.late.geometry.Geometry`). When pixels are asked for, the
native library makes only those (:class:`~fastload.late.source.FileSource`). Changes of colors are made by it too
(:mod:`fastload.late.colors`). Every other operation turns the image into an ordinary Pillow image first.
``torchvision.transforms.Compose`` makes conversion, scaling and ``Normalize`` in the same pass
(:mod:`fastload.late.containers`), also of lazy tensors (:mod:`fastload.late.deferred`).

Functions that return whole images, such as ``cv2.imread``, are decoded by the native library at once
(:mod:`fastload.late.arrays`). It changes the colors of tensors that are in memory (:mod:`fastload.late.tensor_colors`),
and the random crop that keeps boxes is drawn with fewer calls (:mod:`fastload.late.draws`).

Late decoding stays off where the library's pixels are not the installed Pillow's, where Pillow was patched, and outside
of samples. To support one more operation: record it in ``Geometry``, and override it in :mod:`fastload.late.image`.
"""

from .scope import LateSamples

__all__ = ["LateSamples"]
