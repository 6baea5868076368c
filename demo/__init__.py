"""The main job, end to end, on real data: 336 776 flights through a topic, Spark, and back."""
