"""Problems of a placement and their remedies. Pure: no runtime."""
