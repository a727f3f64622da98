package config_test

import (
	"errors"
	"fmt"

	"softiser/config"
)

// Everything that is wrong is said at once, each with its place and with what
// is expected there.
func ExampleParse() {
	_, err := config.Parse([]byte(`
portals:
  - listen: 127.0.0.1:3260
volumes:
  - name: disk0
    typ: memory
    size: 1G
targets:
  - iqn: iqn.2026-11.softiser:disk0
    luns:
      - {lun: 0, volume: disk0}
`), "target.yaml")
	var all config.Problems
	if errors.As(err, &all) {
		for _, p := range all {
			fmt.Println(p.Line, p.Key)
		}
	}

	// Output:
	// 6 volumes[0].typ
	// 7 volumes[0].size
}
