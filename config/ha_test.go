package config

import (
	"strings"
	"testing"
)

// moving is a configuration of a volume that moves between nodes, by iSCSI and NVMe.
const moving = `
portals: [{listen: "127.0.0.1:3260"}]
admin: {state_dir: /state}
volumes:
  - {name: disk0, type: file, path: disk0.img, size: 1GiB, wwid: 6000000000000000000000000000da7a, serial: S1}
  - {name: disk1, type: file, path: disk1.img, size: 1GiB}
targets:
  - {iqn: "iqn.2026-11.softiser:disk0", luns: [{lun: 0, volume: disk0}]}
subsystems:
  - {nqn: "nqn.2026-11.softiser:disk0", serial: SUB1, min_cntlid: 1, max_cntlid: 1000, namespaces: [{nsid: 1, volume: disk0}]}
ha:
  node: a
  store: shared
  portals: [{address: 192.0.2.2:3260, group: 12}]
  groups: [{name: g1, volumes: [disk0], fencing: node}]
`

func TestHA(t *testing.T) {
	c, err := Parse([]byte(moving), "/etc/x/t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if g := c.HA.GroupOf("disk0"); g == nil || g.Name != "g1" || g.Start != "" {
		t.Errorf("group of disk0 = %+v", g)
	}
	if c.HA.GroupOf("disk1") != nil || c.HA.Store != "/etc/x/shared" {
		t.Errorf("disk1 moves, or the store is %s", c.HA.Store)
	}
	again, err := Parse([]byte(c.YAML()), "")
	if err != nil || again.HA.Groups[0].Fencing != "node" {
		t.Errorf("what is printed does not load: %v", err)
	}
}

// What would let two nodes have one volume, or make two of it, is refused.
func TestHARefused(t *testing.T) {
	for _, c := range []struct{ was, now, want string }{
		{", fencing: node", "", "ha.groups[0].fencing: missing; without something that keeps a lost node from the data"},
		{"fencing: node", "fencing: luck", `"luck"`},
		{", serial: S1", "", "disk0 needs a wwid and a serial"},
		{"wwid: 6000000000000000000000000000da7a, ", "", "disk0 needs a wwid and a serial"},
		{"disk0.img, size: 1GiB", "disk0.img", "disk0 needs a size"},
		{"disk0.img, ", "disk0.img, create: true, ", "disk0 has create: true"},
		{"volumes: [disk0]", "volumes: [disk0, disk7]", `there is no volume "disk7"`},
		{"volumes: [disk0]", "volumes: []", "ha.groups[0].volumes: missing"},
		{"volumes: [disk0]", "volumes: [disk0, disk0]", "disk0 is already in ha.groups[0]"},
		{"  node: a\n", "", "ha.node: missing"},
		{"  store: shared\n", "", "ha.store: missing"},
		{"name: g1", "name: ../g1", `"../g1" is no name of a group`},
		{`iqn: "iqn.2026-11.softiser:disk0",`, `iqn: "iqn.2026-11.softiser:disk0", alua_mode: explicit,`, "targets[0].alua_mode: explicit lets initiators"},
		{"min_cntlid: 1, max_cntlid: 1000, ", "", "subsystems[0].min_cntlid: each node needs"},
		{"serial: SUB1, ", "", "subsystems[0].serial: missing"},
		{"  groups: [{name: g1, volumes: [disk0], fencing: node}]\n", "", "ha.groups: missing"},
		{"  store: shared\n", "  store: /state\n", "ha.store: is admin.state_dir"},
		{"address: 192.0.2.2:3260, group: 12", "address: 192.0.2.2:3260, group: 1", "ha.portals[0].group: 1 is that of portals[0]"},
		{"address: 192.0.2.2:3260", "address: node-b:3260", "ha.portals[0].address"},
		{"address: 192.0.2.2:3260", "address: roce://node-b", "ha.portals[0].address"},
		{"portals: [{address: 192.0.2.2:3260, group: 12}]", "portals: [{address: roce://192.0.2.2:3260, group: 12}, {address: roce://192.0.2.2, group: 12}]", "ha.portals[1].address: roce://192.0.2.2:3260 is already"},
	} {
		if !strings.Contains(moving, c.was) {
			t.Fatalf("%q is not in the configuration", c.was)
		}
		text := strings.Replace(moving, c.was, c.now, 1)
		_, err := Parse([]byte(text), "/etc/x/t.yaml")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: %v\nwant %q", c.now, c.was, err, c.want)
		}
	}
}
