package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"softiser/interop/internal/guest"
	"softiser/interop/internal/ports"
)

const (
	haIQN  = "iqn.2026-11.softiser:disk0"
	haNQN  = "nqn.2026-11.softiser:disk0"
	haWWID = "6000000000000000000000000000da7a"
	haSize = 64 << 20
)

// haPair is two iser-target processes on the host, a and b, with one volume between them:
// a file that the one opens which is promoted. Guests see them at 10.0.2.2.
type haPair struct {
	e     *Env
	nodes [2]haNode
}

type haNode struct {
	name   string
	port   int
	socket string
	proc   *Process
}

// newHAPair starts both, and promotes a.
func newHAPair(e *Env) (*haPair, error) {
	p := &haPair{e: e}
	for i, name := range []string{"a", "b"} {
		p.nodes[i] = haNode{name: name, port: ports.Free(), socket: filepath.Join(e.dir, name+".sock")}
	}
	disk, err := os.Create(filepath.Join(e.dir, "disk0.img"))
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	if err := errors.Join(disk.Truncate(haSize), os.Mkdir(filepath.Join(e.dir, "store"), 0o755)); err != nil {
		return nil, err
	}
	for i := range p.nodes {
		if err := p.start(i); err != nil {
			return nil, err
		}
	}
	return p, p.promote(0)
}

// haConfig is the configuration of a node without the first line of its portal.
func haConfig(name, socket string, group, otherPort, otherGroup, cntlid int) string {
	return fmt.Sprintf(`    group: %[3]d
volumes:
  - {name: disk0, type: file, path: disk0.img, size: 64MiB, wwid: %[7]s, serial: DISK0, write_through: true}
targets:
  - {iqn: %[8]s, luns: [{lun: 0, volume: disk0}]}
subsystems:
  - nqn: %[9]s
    serial: DISK0SUB
    min_cntlid: %[6]d
    max_cntlid: %[10]d
    remote: [{address: "10.0.2.2:%[4]d"}]
    namespaces: [{nsid: 1, volume: disk0}]
ha:
  node: %[1]s
  store: store
  portals: [{address: "10.0.2.2:%[4]d", group: %[5]d}]
  groups: [{name: disks, volumes: [disk0], fencing: node}]
admin: {socket: %[2]s, state_dir: state-%[1]s}
`, name, socket, group, otherPort, otherGroup, cntlid, haWWID, haIQN, haNQN, cntlid+999)
}

// start starts node i, or starts it again: it is on standby.
func (p *haPair) start(i int) error {
	n, other := &p.nodes[i], p.nodes[1-i]
	proc, err := p.e.TargetOn(n.port, haConfig(n.name, n.socket, i+1, other.port, 2-i, 1+1000*i))
	n.proc = proc
	return err
}

// promote makes node i the one that has the volume.
func (p *haPair) promote(i int) error {
	_, err := p.e.Host("iser-target", "promote", "--socket", p.nodes[i].socket, "--timeout", "30s", "disks")
	return err
}

// failOver kills the node that has the volume and promotes the other one.
func (p *haPair) failOver(active int) error {
	p.nodes[active].proc.Kill()
	return p.promote(1 - active)
}

// stop ends both in order.
func (p *haPair) stop() error {
	for _, n := range p.nodes {
		if err := n.proc.Stop(); err != nil {
			return fmt.Errorf("iser-target %s: %w", n.name, err)
		}
	}
	return nil
}

// haFile is a file of docs/ha: what is written there is what the cases use.
func haFile(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join("docs", "ha", name))
	return string(b), err
}

// intoGuest writes a text to a file of a guest's /job folder.
func intoGuest(g *guest.Guest, name, text string) error {
	return os.WriteFile(filepath.Join(g.Dir(), name), []byte(text), 0o644)
}
