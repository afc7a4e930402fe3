"""The journey of an invocation, free of any protocol: route → queue → slot → connection → outcome."""
