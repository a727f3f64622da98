package config

import (
	"bytes"
	"encoding/json"
	"slices"

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

// MarshalJSON writes lists of which nothing is said as empty ones: null is no list, neither here nor to
// whoever reads it.
func (c Config) MarshalJSON() ([]byte, error) {
	type plain Config
	c.Portals, c.Volumes, c.Targets, c.Subsystems = list(c.Portals), list(c.Volumes), list(c.Targets), slices.Clone(c.Subsystems)
	for i := range c.Targets {
		c.Targets[i].LUNs = list(c.Targets[i].LUNs)
	}
	for i := range c.Subsystems {
		c.Subsystems[i].Namespaces = list(c.Subsystems[i].Namespaces)
	}
	return json.Marshal(plain(c))
}

// list is a copy of a list, an empty one if there is none.
func list[T any](of []T) []T { return append([]T{}, of...) }

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
