"""Plug-ins for imread_benchmark: JPEG bytes to [H, W, 3] of uint8, contiguous."""

from typing import Any

import numpy as np
from imread_benchmark.decoders import BaseDecoder

from fastload.images import decode


class Fastload(BaseDecoder):
    name, package_name = "fastload", "torch-fastload"
    decode = staticmethod(decode)


class Torchcodec(BaseDecoder):
    name, package_name = "torchcodec", "torchcodec"

    def decode(self, data: bytes) -> Any:
        from torchcodec.decoders import decode_jpeg

        return np.ascontiguousarray(decode_jpeg(data).permute(1, 2, 0).numpy())
