// Package examples embeds the commented example configurations.
package examples

import "embed"

// Files holds the examples.
//
//go:embed *.yaml
var Files embed.FS
