package registry

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"softiser/lvm"
	"softiser/lvm/vg"
)

// TestHandOverLockedGroup: a group whose lock somebody keeps, because its disks do not answer, does not have
// everybody stand still for longer than there is time.
func TestHandOverLockedGroup(t *testing.T) {
	dir := t.TempDir()
	pv, cfg := filepath.Join(dir, "pv.img"), vg.Config{LockDir: filepath.Join(dir, "lock"), ArchiveDir: "-", BackupDir: "-"}
	m := &lvm.Manager{Config: lvm.Config{Config: cfg}}
	d, err := m.Open(lvm.Spec{VG: "vgho", LV: "v", Devices: []string{pv}, Size: 4 << 20, DeviceSize: 64 << 20})
	if err == nil {
		err = errors.Join(d.Close(), m.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeWith(t, fmt.Sprintf("portals: [{listen: \"127.0.0.1:0\"}]\nvolumes: [{name: v, type: lvm, vg: vgho, lv: v, devices: [%q]}]\ntargets: [{iqn: %q, luns: [{lun: 0, volume: v}]}]\n", pv, haIQN), "a", false, nil)
	g := n.Groups().Group("vgho")
	locked, unlock, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		_ = g.VG(func(*vg.Group) error { // it has no error of its own
			close(locked)
			<-unlock
			return nil
		})
	}()
	<-locked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.HandOver(ctx); !errors.Is(err, lvm.ErrUnsettled) {
		t.Errorf("a group that is locked: %v", err)
	}
	close(unlock)
	<-over
	all, err := n.HandOver(t.Context())
	if err != nil || len(all.Groups) != 1 || len(all.Volumes) != 1 || len(all.Left) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	all.discard()
	n.GoOn()
}
