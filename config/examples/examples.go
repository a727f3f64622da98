// Package examples embeds the commented example configurations.
package examples

import "embed"

// Files holds minimal.yaml, production.yaml, many-targets.yaml, snapshots.yaml and secure.yaml.
//
//go:embed *.yaml
var Files embed.FS
