// Package examples embeds the commented example configurations. A systemd unit,
// iser-target.service, lies beside them.
package examples

import "embed"

// Files holds minimal.yaml, production.yaml, many-targets.yaml and secure.yaml.
//
//go:embed *.yaml
var Files embed.FS
