"""How true ``fastload profile`` speaks: known-answer pipelines, and what it says of them."""
