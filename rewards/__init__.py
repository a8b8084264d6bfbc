"""Pure functions from small outcome records to named reward terms, and the rubric that weighs them."""
