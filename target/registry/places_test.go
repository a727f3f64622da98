package registry

import (
	"context"
	"testing"
	"testing/synctest"

	"softiser/blockdev"
	"softiser/config"
	"softiser/target"
)

// What is added where something else is just being removed stays, and its volume open, whichever it is.
func TestAddWhereSomethingGoes(t *testing.T) {
	for _, name := range []string{"well", "new"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, base)
				p := place{"iqn.2026-11.test:a", 1}
				v, err := b.Volume(name)
				if err != nil {
					v = config.Volume{Name: name, Type: config.VolumeMemory, Size: 1 << 20}
				}
				added := make(chan error, 1)
				err = b.mapping.remove(t.Context(), p, func(ctx context.Context) error {
					err := b.srv.RemoveLUN(ctx, p.node, 1)
					go func() { added <- b.AddLUN(ctx, p.node, 1, v) }()
					synctest.Wait()
					return err
				})
				if err != nil {
					t.Error(err)
				}
				if err := <-added; err != nil {
					t.Error(err)
				}
				if served, _ := b.mapping.served(p); served != name || b.storage.openings(name)-b.storage.closings(name) != 1 {
					t.Errorf("%q is served, opened %d times and closed %d times", served, b.storage.openings(name), b.storage.closings(name))
				}
				if l := b.mapping.lun(p); l.Volume != name {
					t.Errorf("remembered is %+v", l)
				}
				if err := b.RemoveLUN(t.Context(), p.node, 1); err != nil || b.storage.openings(name) != b.storage.closings(name) {
					t.Errorf("in the end: %v, closed %d times", err, b.storage.closings(name))
				}
			})
		})
	}
}

// What is removed before whoever added it has been answered leaves nothing behind, alone or with its target.
func TestRemoveWhatJustCame(t *testing.T) {
	for what, remove := range map[string]func(context.Context, *bed, place) error{
		"the LUN": func(ctx context.Context, b *bed, p place) error { return b.RemoveLUN(ctx, p.node, uint16(p.id)) },
		"the target": func(ctx context.Context, b *bed, p place) error {
			return b.mapping.removeNode(ctx, p.node, func(ctx context.Context) error { return b.srv.RemoveTarget(ctx, p.node) })
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, base)
				p := place{"iqn.2026-11.test:a", 2}
				v := config.Volume{Name: "new", Type: config.VolumeMemory, Size: 1 << 20}
				lc, err := lunConfig(b.config(), v, config.LUN{LUN: 2, Volume: "new"})
				if err != nil {
					t.Fatal(err)
				}
				removed := make(chan error, 1)
				err = b.mapping.add(t.Context(), nil, p, v, nil, func(dev blockdev.Device) error {
					lc.Volume = dev
					err := b.srv.AddLUN(p.node, target.LUN{Name: "new", LUConfig: lc})
					go func() { removed <- remove(t.Context(), b, p) }()
					synctest.Wait()
					return err
				})
				if err != nil {
					t.Error(err)
				}
				if err := <-removed; err != nil {
					t.Error(err)
				}
				if served, _ := b.mapping.served(p); served != "" || b.storage.openings("new") != 1 || b.storage.closings("new") != 1 {
					t.Errorf("%q is served, opened %d times and closed %d times", served, b.storage.openings("new"), b.storage.closings("new"))
				}
			})
		})
	}
}
