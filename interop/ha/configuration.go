package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
)

const (
	iqn = "iqn.2026-11.softiser:disk0"
	nqn = "nqn.2026-11.softiser:disk0"

	diskSize   = 128 << 20
	fencedSize = 8 << 20 // of the volume with the reservations, LUN 1
)

// configuration is how a volume is made highly available.
type configuration struct {
	name         string
	nodes        int
	arbiter      bool // corosync-qnetd, for two nodes
	promotable   bool // the group moves between processes; else the process does
	lvm          bool // the volumes are in a volume group, which is opened where the process runs
	storageFence bool // the shared disk refuses a lost node, which keeps its power
	neverRefuse  bool // the shared disk refuses nobody, which shows that the check would see late writes
	who          string
}

var configurations = []configuration{
	{name: "process", nodes: 3, who: "majority; power switch"},
	{name: "group", nodes: 3, promotable: true, who: "majority; power switch"},
	{name: "arbiter", nodes: 2, arbiter: true, promotable: true, who: "arbiter; power switch"},
	{name: "lvm", nodes: 3, lvm: true, who: "majority; power switch"},
	{name: "disk", nodes: 3, storageFence: true, who: "majority; the shared disk"},
}

var (
	//go:embed corosync.conf.tmpl
	corosyncConf string
	//go:embed cib.xml.tmpl
	cib string
	//go:embed target.yaml.tmpl
	targetConf string
)

// shared is what the nodes' storage is.
func (c *cluster) shared() string { return filepath.Join(c.dir, "shared") }

// files writes what the nodes boot from.
func (c *cluster) files() error {
	for _, d := range []string{"sbin", "ocf/softiser", "shared/state", "shared/store", "shared/disk0", "shared/fenced"} {
		if err := os.MkdirAll(filepath.Join(c.dir, d), 0o755); err != nil {
			return err
		}
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	agent := fmt.Sprintf("#!/bin/sh\nexec %s fence %s \"$@\"\n", self, c.socket())
	hosts := "127.0.0.1 localhost\n"
	for _, n := range c.nodes {
		hosts += fmt.Sprintf("%s%d %s\n", network, n.number, n.name)
	}
	for _, f := range []struct {
		name string
		mode os.FileMode
		text string
	}{{"node.sh", 0o755, string(nodeScript)}, {"sbin/fence_switch", 0o755, agent}, {"hosts", 0o644, hosts}} {
		if err := os.WriteFile(filepath.Join(c.dir, f.name), []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(c.dir, "ocf/softiser/target"), "packaging/ocf/softiser/target"); err != nil {
		return err
	}
	facts := c.facts()
	if err := write(filepath.Join(c.dir, "corosync.conf"), corosyncConf, facts); err != nil {
		return err
	}
	if err := write(filepath.Join(c.dir, "cib.xml"), cib, facts); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := os.MkdirAll(filepath.Join(c.dir, n.name, "log/pacemaker"), 0o777); err != nil {
			return err
		}
		facts["Node"], facts["First"], facts["Last"] = n.name, (n.number-1)*1000+1, n.number*1000
		if err := write(filepath.Join(c.dir, n.name, "target.yaml"), targetConf, facts); err != nil {
			return err
		}
	}
	return c.storage()
}

// member is a node, for templates.
type member struct {
	Name   string
	Number int
}

func (c *cluster) facts() map[string]any {
	var members []member
	for _, n := range c.nodes {
		members = append(members, member{n.name, n.number})
	}
	disk0, fenced := "disk0.img", "fenced.img"
	if c.storageFence {
		disk0, fenced = "disk0/disk", "fenced/disk"
	}
	return map[string]any{
		"Dir": c.dir, "Shared": c.shared(), "Bin": c.bin, "Names": c.names(), "Members": members, "Host": ourHost,
		"Two": len(c.nodes) == 2, "Arbiter": c.arbiter, "Promotable": c.promotable, "LVM": c.lvm, "Address": floating, "Portal": portal, "IQN": iqn, "NQN": nqn,
		"Disk0": filepath.Join(c.shared(), disk0), "Fenced": filepath.Join(c.shared(), fenced), "DiskSize": diskSize, "FencedSize": fencedSize,
	}
}

// storage makes the shared disk, blank.
func (c *cluster) storage() error {
	if !c.lvm {
		for name, size := range map[string]int64{"disk0.img": diskSize, "fenced.img": fencedSize} {
			p := filepath.Join(c.shared(), name)
			if err := os.WriteFile(p, nil, 0o600); err != nil {
				return err
			}
			if err := os.Truncate(p, size); err != nil {
				return err
			}
		}
		if !c.storageFence {
			return nil
		}
		c.array = &array{never: c.neverRefuse, refused: map[string]bool{}, late: map[string]int{}}
		if err := c.array.connect(c.dir, "disk0", diskSize, c.names()); err != nil {
			return err
		}
		return c.array.connect(c.dir, "fenced", fencedSize, c.names())
	}
	pv := filepath.Join(c.shared(), "pv.img")
	if err := os.WriteFile(pv, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(pv, diskSize+fencedSize+(32<<20)); err != nil {
		return err
	}
	for _, args := range []string{"vgcreate vg0 " + pv, fmt.Sprintf("lvcreate -L %db -n disk0 vg0", diskSize), fmt.Sprintf("lvcreate -L %db -n fenced vg0", fencedSize)} {
		cmd := exec.Command(filepath.Join(c.bin, "iser-target"), append([]string{"lvm", "--devices", pv}, strings.Fields(args)...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", args, err, out)
		}
	}
	return nil
}

func write(path, text string, facts map[string]any) error {
	b, err := render(filepath.Base(path), text, facts)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

func render(name, text string, facts map[string]any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, facts)
	return b.Bytes(), err
}
