"""What the product is made of besides its own code: bills of materials, licences, known vulnerabilities."""
