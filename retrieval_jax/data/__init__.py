"""Everything that reads text: vocabularies, token stores, relevance, data sets. TensorFlow only inside functions."""
