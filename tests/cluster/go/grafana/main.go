// Reads dashboards with Grafana's own schema: unknown fields and wrong types are errors, fields that Grafana fills in are none.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

const hasDefault = ": required field is missing from input"

func main() {
	plugins.RegisterDefaultPlugins()
	isGood := true
	for _, path := range os.Args[1:] {
		for _, fault := range faults(path) {
			isGood = false
			fmt.Printf("%s: %s\n", path, fault)
		}
	}
	if !isGood {
		os.Exit(1)
	}
}

// faults says what the schema does not take.
func faults(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return []string{err.Error()}
	}
	var board dashboard.Dashboard
	var found []string
	for _, err := range []error{board.UnmarshalJSONStrict(data), board.Validate()} {
		if err == nil {
			continue
		}
		for _, line := range strings.Split(err.Error(), "\n") {
			if !strings.HasSuffix(line, hasDefault) {
				found = append(found, line)
			}
		}
	}
	if len(board.Panels) == 0 {
		found = append(found, "no panel was read")
	}
	return found
}
