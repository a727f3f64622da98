package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// documents are the files of a configuration as docs/ha has them, by their paths there: what
// the nodes of the tests run, at paths as an administrator would choose them.
func documents() (map[string][]byte, error) {
	docs := map[string][]byte{}
	for _, conf := range configurations {
		if conf.storageFence { // those of process; the fence agent is another one
			continue
		}
		c := &cluster{configuration: conf, dir: "/var/lib/softiser", bin: "/usr/bin"}
		for i := range conf.nodes {
			c.nodes = append(c.nodes, &node{name: fmt.Sprintf("n%d", i+1), number: i + 1})
		}
		facts := c.facts()
		facts["Shared"], facts["Disk0"], facts["Fenced"] = "/srv/softiser", "/srv/softiser/disk0.img", "/srv/softiser/fenced.img"
		facts["Node"], facts["First"], facts["Last"] = "n1", 1, 1000
		for name, text := range map[string]string{"corosync.conf": corosyncConf, "cib.xml": cib, "target.yaml": targetConf} {
			b, err := render(name, text, facts)
			if err != nil {
				return nil, err
			}
			docs[filepath.Join(conf.name, name)] = b
		}
	}
	return docs, nil
}

// writeDocuments puts them below a folder.
func writeDocuments(dir string) error {
	docs, err := documents()
	if err != nil {
		return err
	}
	for name, b := range docs {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(p, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
