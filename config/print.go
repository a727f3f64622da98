package config

import (
	"bytes"
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// YAML prints the resolved configuration as a file that loads to the same.
// Secrets appear only as the place they come from.
func (c *Config) YAML() string {
	// By way of JSON, whose tags already leave out what is empty and whose
	// encoder honours Size's text form.
	raw, err := json.Marshal(c.printable())
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return "# " + err.Error() + "\n"
	}
	blockStyle(&doc, 0)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return "# " + err.Error() + "\n"
	}
	return out.String()
}

// printable is the configuration without the name of its own file, which is no
// key of the format.
func (c *Config) printable() *Config {
	p := *c
	p.File = ""
	return &p
}

// blockStyle turns JSON's flow style into the block style that people write.
func blockStyle(n *yaml.Node, depth int) {
	if n.Kind == yaml.ScalarNode {
		n.Style = 0
		if n.Tag == "!!str" && (n.Value == "null" || n.Value == "") {
			n.Style = yaml.DoubleQuotedStyle
		}
		return
	}
	n.Style = 0
	for _, c := range n.Content {
		blockStyle(c, depth+1)
	}
}
