package registry

import (
	"context"
	"errors"
	"strings"
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
				err = b.mapping.add(t.Context(), b.mapping.ask(p, config.LUN{LUN: 2, Volume: "new"}), p, v, nil, func(dev blockdev.Device) error {
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

// A LUN or a namespace whose volume could not be opened is removed like any other, and comes back with a reload; what is in
// neither the configuration nor the target cannot be.
func TestRemoveWhatCouldNotBeServed(t *testing.T) {
	b := newClosedBed(t, withSick())
	b.storage.breakDown("sick", errors.New("input/output error"))
	if err := b.OpenVolumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	const iqn, nqn = "iqn.2026-11.test:a", "nqn.2026-11.test:a"
	why := func() string {
		st := b.Status()
		return st.Targets[0].LUNs[0].Error + "; " + st.Subsystems[0].Namespaces[0].Error
	}
	if got := why(); strings.Count(got, "input/output error") != 2 {
		t.Errorf("status says %q", got)
	}
	_, traced := b.Trace("", nqn, 1, 0)
	for _, err := range []error{b.ResizeLUN(t.Context(), iqn, 0, 2<<20), traced, b.Unserved(iqn, 0)} {
		if err == nil || !strings.Contains(err.Error(), " is not served: ") || !strings.Contains(err.Error(), "input/output error") {
			t.Errorf("what is not served is to be changed: %v", err)
		}
	}
	if err := errors.Join(b.RemoveLUN(t.Context(), iqn, 0), b.RemoveNamespace(t.Context(), nqn, 1)); err != nil {
		t.Error(err)
	}
	if got := why(); strings.Count(got, "removed by") != 2 {
		t.Errorf("afterwards status says %q", got)
	}
	if err := b.RemoveLUN(t.Context(), iqn, 0); err == nil || !strings.Contains(err.Error(), "there is no LUN 0") {
		t.Errorf("once more: %v", err)
	}
	if err := b.AddLUN(t.Context(), iqn, 9, config.Volume{Name: "sick", Type: config.VolumeMemory, Size: 1 << 20}); err == nil {
		t.Error("a broken volume is added")
	}
	if err := b.RemoveLUN(t.Context(), iqn, 9); err == nil || !strings.Contains(err.Error(), "there is no LUN 9") {
		t.Errorf("what could not be added by hand either: %v", err)
	}
	b.storage.breakDown("sick", nil)
	if _, _, err := b.Reload(t.Context(), false); err != nil || b.size(0) != 1<<20 || !strings.Contains(b.spaces(), "1=sick") {
		t.Errorf("after a reload: %v, the LUN has %d bytes, namespaces are %s", err, b.size(0), b.spaces())
	}
}

// Why something is not served is kept while the configuration has it, and of nothing else: names may be ever new.
func TestReasonsAreForgotten(t *testing.T) {
	b := newBed(t, base)
	b.storage.breakDown("bad", errors.New("input/output error"))
	bad := config.Volume{Name: "bad", Type: config.VolumeMemory, Size: 1 << 20}
	for _, err := range []error{
		b.AddLUN(t.Context(), "iqn.2026-11.test:none", 0, bad),
		b.AddLUN(t.Context(), "iqn.2026-11.test:a", 9, bad),
		b.AddNamespace(t.Context(), "nqn.2026-11.test:none", 1, bad),
	} {
		if err == nil {
			t.Error("what cannot be served is added")
		}
	}
	if r := b.mapping.reasons; len(r) > 0 {
		t.Errorf("of what was asked for by hand: %v", r)
	}
	reload := func(text string, reasons int) {
		t.Helper()
		b.write(text)
		if _, _, err := b.Reload(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if r := b.mapping.reasons; len(r) != reasons {
			t.Errorf("%v, want %d", r, reasons)
		}
	}
	solo := strings.Replace(base, "targets:", "  - {name: bad, type: memory, size: 1MiB}\ntargets:\n  - iqn: iqn.2026-11.test:new\n    luns: [{lun: 0, volume: bad}]", 1)
	reload(solo, 1)
	reload(base, 0)
}

// What is added by hand and storage does not answer can be removed, and nothing else be added in its place before.
func TestRemoveWhatIsOnItsWayByHand(t *testing.T) {
	for what, do := range map[string]struct {
		add    func(context.Context, *bed, config.Volume) error
		remove func(context.Context, *bed) error
	}{
		"a LUN": {
			func(ctx context.Context, b *bed, v config.Volume) error {
				return b.AddLUN(ctx, "iqn.2026-11.test:a", 5, v)
			},
			func(ctx context.Context, b *bed) error { return b.RemoveLUN(ctx, "iqn.2026-11.test:a", 5) },
		},
		"a namespace": {
			func(ctx context.Context, b *bed, v config.Volume) error {
				return b.AddNamespace(ctx, "nqn.2026-11.test:s", 5, v)
			},
			func(ctx context.Context, b *bed) error { return b.RemoveNamespace(ctx, "nqn.2026-11.test:s", 5) },
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, withSubsystems())
				late, other := config.Volume{Name: "late", Type: config.VolumeMemory, Size: 1 << 20}, config.Volume{Name: "other", Type: config.VolumeMemory, Size: 1 << 20}
				answer := b.storage.stall("late")
				defer answer()
				added := make(chan error, 1)
				go func() { added <- do.add(t.Context(), b, late) }()
				synctest.Wait()
				if err := do.add(t.Context(), b, other); err == nil || !strings.Contains(err.Error(), "is being added already") {
					t.Errorf("something else in its place: %v", err)
				}
				if err := do.remove(t.Context(), b); err != nil {
					t.Error(err)
				}
				if err := do.add(t.Context(), b, other); err != nil {
					t.Errorf("afterwards: %v", err)
				}
				answer()
				if err := <-added; !errors.Is(err, errOvertaken) {
					t.Errorf("who added it is told %v", err)
				}
				if b.storage.openings("late") != b.storage.closings("late") || b.storage.openings("other") != 1 || b.storage.closings("other") != 0 {
					t.Errorf("late was opened %d times and closed %d times", b.storage.openings("late"), b.storage.closings("late"))
				}
			})
		})
	}
}

// What a reload has on its way is not called removed.
func TestStatusOfWhatAReloadBrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, base)
		answer := b.storage.stall("late")
		defer answer()
		b.write(strings.NewReplacer("targets:", "  - {name: late, type: memory, size: 1MiB}\ntargets:", "luns: [", "luns: [{lun: 2, volume: late}, ").Replace(base))
		if left := b.impatient(); len(left) != 1 || !strings.Contains(left[0], "storage has not answered yet") {
			t.Errorf("not done: %q", left)
		}
		if why := b.Status().Targets[0].LUNs[2].Error; !strings.HasPrefix(why, "storage has not answered yet") {
			t.Errorf("status says %q", why)
		}
		answer()
		synctest.Wait()
		if b.size(2) != 1<<20 {
			t.Errorf("in the end the LUN has %d bytes", b.size(2))
		}
	})
}

// What a reload cannot serve before the next start is not called removed, and can be.
func TestStatusOfWhatAReloadCannotBring(t *testing.T) {
	b := newBed(t, withSubsystems())
	b.write(strings.NewReplacer("luns: [", "luns: [{lun: 2, volume: x, alua_groups: [{group: 7, state: standby}]}, ",
		"namespaces: [", "namespaces: [{nsid: 3, volume: y, ana_groups: [{group: 7, state: inaccessible}]}, ",
		"targets:", "  - {name: x, type: memory, size: 1MiB}\n  - {name: y, type: memory, size: 1MiB}\ntargets:",
		`[{listen: "127.0.0.1:0"}]`, `[{listen: "127.0.0.1:0"}, {listen: "127.0.0.2:0", group: 7}]`).Replace(withSubsystems()))
	if _, _, err := b.Reload(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	st := b.Status()
	for _, why := range []string{st.Targets[0].LUNs[2].Error, st.Subsystems[0].Namespaces[2].Error} {
		if !strings.HasPrefix(why, "no portal of the running target belongs to group 7") {
			t.Errorf("status says %q", why)
		}
	}
	if err := errors.Join(b.RemoveLUN(t.Context(), "iqn.2026-11.test:a", 2), b.RemoveNamespace(t.Context(), "nqn.2026-11.test:s", 3)); err != nil {
		t.Error(err)
	}
	if why := b.Status().Targets[0].LUNs[2].Error; !strings.HasPrefix(why, "removed by") {
		t.Errorf("afterwards status says %q", why)
	}
}
