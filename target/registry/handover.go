package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"softiser/blockdev"
	"softiser/config"
	"softiser/target/volume"
)

// The volumes of a process that another one replaces. Files, block devices and memory go over
// as they are open; what has no single store (logical volumes, groups of volumes that move
// between nodes, volumes with faults) is opened anew once the old process has ended, as after a
// crash.

// Handed is a volume on its way from one process to the next.
type Handed struct {
	Name string `json:"name"`
	// Settings are those of the configuration, by key, with which it is open.
	Settings map[string]json.RawMessage `json:"settings"`
	Places   []HandedPlace              `json:"places"`
	Store    blockdev.Opened            `json:"store"`
	State    volume.Carried             `json:"state"`
}

// HandedPlace is where it is served.
type HandedPlace struct {
	Node string `json:"node"` // IQN, or NQN
	ID   uint32 `json:"id"`   // LUN, or NSID
}

// HandOver returns the volumes that can go to another process, each with a descriptor that is
// the caller's, and the names of those that cannot. Preconditions: the volumes are frozen.
func (r *Registry) HandOver() (all []Handed, left []string, err error) {
	defer func() {
		if err != nil {
			for _, h := range all {
				h.Store.Discard()
			}
			all = nil
		}
	}()
	for _, o := range r.volumes.all() {
		v := r.volumes.description(o)
		dev, ok := o.dev.(blockdev.HandsOver)
		if !ok {
			left = append(left, v.Name)
			continue
		}
		h := Handed{Name: v.Name, Settings: settingsOf(v)}
		for _, p := range r.volumes.placesOf(o) {
			h.Places = append(h.Places, HandedPlace{p.node, p.id})
		}
		x := r.srv.Volume(o.dev)
		if x == nil {
			continue // open, and served nowhere
		}
		if h.State, err = volume.Carry(x); err == nil {
			h.Store, err = dev.HandOver()
		}
		if err != nil {
			return all, nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		all = append(all, h)
	}
	return all, left, nil
}

// settingsOf returns the settings of a volume by key.
func settingsOf(v config.Volume) map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		panic(fmt.Sprintf("registry: settings of a volume have no JSON form: %v", err)) // a mistake of ours
	}
	return m
}

// notFixed are the keys that may differ: a size is what the volume has, and the others are
// about its making or change on line.
var notFixed = append([]string{"create", "preallocate"}, tunables...)

// unlike returns the keys in which the settings that a volume is open with differ from v. A
// version of the program that does not know a key has it at its zero value.
func (h *Handed) unlike(v config.Volume) (keys []string) {
	mine := settingsOf(v)
	zero := func(b json.RawMessage) bool {
		return slices.Contains([]string{"", "false", "0", `""`, "null", "{}", "[]"}, string(b))
	}
	all := maps.Clone(mine)
	maps.Copy(all, h.Settings)
	for k := range all {
		a, b := mine[k], h.Settings[k]
		if !slices.Contains(notFixed, k) && string(a) != string(b) && !(zero(a) && zero(b)) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// CheckHanded says why the configuration of this process does not go with what another one
// hands over; nil: it does. Nothing is touched.
func (r *Registry) CheckHanded(all []Handed) error {
	var errs []error
	for i := range all {
		h := &all[i]
		v, ok := findVolume(r.config(), h.Name)
		if !ok {
			errs = append(errs, fmt.Errorf("volume %s is served, and is not in the configuration of the new process: put it there, or stop serving it", h.Name))
			continue
		}
		if keys := h.unlike(v); len(keys) > 0 {
			errs = append(errs, fmt.Errorf("volume %s is open with another %s than the configuration of the new process says; such a change takes a restart", h.Name, strings.Join(keys, ", ")))
		}
		for _, p := range h.Places {
			if r.volumeAt(p) != h.Name {
				errs = append(errs, fmt.Errorf("volume %s is served at %d of %s, and not so in the configuration of the new process: reload, or put it there", h.Name, p.ID, p.Node))
			}
		}
	}
	return errors.Join(errs...)
}

// volumeAt returns the name of the volume that the configuration serves at a place.
func (r *Registry) volumeAt(p HandedPlace) string {
	for _, t := range r.config().Targets {
		for _, l := range t.LUNs {
			if t.IQN == p.Node && uint32(l.LUN) == p.ID {
				return l.Volume
			}
		}
	}
	for _, s := range r.config().Subsystems {
		for _, n := range s.Namespaces {
			if s.NQN == p.Node && uint32(n.NSID) == p.ID {
				return n.Volume
			}
		}
	}
	return ""
}

// OpenHanded opens the volumes that another process has handed over, which are this one's
// now, and serves them. OpenVolumes opens the others. Preconditions: CheckHanded.
func (r *Registry) OpenHanded(all []Handed) error {
	if err := r.prepare(); err != nil {
		return err
	}
	names := map[string]bool{}
	r.stores.handed = map[string]*Handed{}
	for i := range all {
		h := &all[i]
		if err := r.srv.ExpectVolume(h.Store.ID, h.State); err != nil {
			return fmt.Errorf("volume %s: %w", h.Name, err)
		}
		r.stores.handed[h.Name], names[h.Name] = h, true
	}
	r.mapping.addAll(r.config(), func(v config.Volume) bool { return names[v.Name] })
	for name, h := range r.stores.handed {
		h.Store.Discard() // nobody has opened it
		delete(r.stores.handed, name)
	}
	return nil
}

// takeHanded returns the store of a volume that was handed over, once; nil: none was.
func (s *stores) takeHanded(name string) *blockdev.Opened {
	h := s.handed[name]
	if h == nil {
		return nil
	}
	delete(s.handed, name)
	return &h.Store
}
