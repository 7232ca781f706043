"""Tests of ONNX files."""
