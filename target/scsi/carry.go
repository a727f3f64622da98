package scsi

import (
	"encoding/json"
	"fmt"
	"time"

	"softiser/internal/spc"
)

// What a device knows beside its volumes goes to the process that takes the place of this
// one: with each nexus what its units have to tell it, with each unit what initiators have
// changed of it. Results of copies and tokens do not; who asks for them is told so.

// CarriedUnit is what a logical unit keeps for one nexus.
type CarriedUnit struct {
	LUN        uint16    `json:"lun"`
	Attentions []spc.ASC `json:"attentions,omitempty"`
	Prevents   bool      `json:"prevents_removal,omitempty"`
	Reserves   bool      `json:"reserves,omitempty"` // by RESERVE of SPC-2
}

// Carry returns what the units keep for n.
func (n *Nexus) Carry() (all []CarriedUnit) {
	for _, e := range *n.itls.Load() {
		u := CarriedUnit{LUN: e.lun}
		e.lu.unit.mu.Lock()
		u.Prevents = e.lu.unit.prevented[n]
		e.lu.unit.mu.Unlock()
		u.Reserves = e.lu.vol.Seizer() == &n.client
		e.lu.mu.Lock()
		u.Attentions = append(u.Attentions, e.queue...)
		e.lu.mu.Unlock()
		all = append(all, u)
	}
	return all
}

// CheckCarried says what is wrong with what has come from another process.
func CheckCarried(all []CarriedUnit) error {
	for i := range all {
		if n := len(all[i].Attentions); n > maxPending {
			return fmt.Errorf("LUN %d: %d unit attentions; %d is the limit", all[i].LUN, n, maxPending)
		}
	}
	return nil
}

// Restore puts what another process has carried in the place of what a new nexus begins with.
// A unit that was not there keeps its unit attention. Preconditions: no command has come.
func (n *Nexus) Restore(all []CarriedUnit) {
	for i := range all {
		u := &all[i]
		e := n.itls.Load().find(u.LUN)
		if e == nil {
			continue
		}
		if u.Prevents {
			e.lu.preventRemoval(n)
		}
		if u.Reserves {
			e.lu.vol.Seize(&n.client)
		}
		e.lu.mu.Lock()
		e.queue = e.queue[:0]
		e.pending.Store(0)
		for _, a := range u.Attentions {
			e.add(a)
		}
		e.lu.mu.Unlock()
	}
}

// CarriedState is what initiators and the administrator have changed of a unit, and no file
// keeps.
type CarriedState struct {
	LUN uint16 `json:"lun"`
	// Modes are the mode parameters in force, where they are not those that are saved.
	Modes json.RawMessage `json:"modes,omitempty"`
	// Tests are the results of self-tests, the latest first, and Added when the hours began that they count.
	// Places of one volume have the same.
	Tests []CarriedTest `json:"self_tests,omitempty"`
	Added time.Time     `json:"added,omitzero"`
	// Access is the state through those target port groups whose state has been changed.
	Access map[uint16]CarriedAccess `json:"access,omitempty"`
}

// CarriedTest is a result of a self-test.
type CarriedTest struct {
	Code   byte    `json:"code"`
	Result byte    `json:"result"`
	Hours  uint16  `json:"hours"`
	LBA    uint64  `json:"lba"`
	Key    spc.Key `json:"key,omitempty"`
	ASC    spc.ASC `json:"asc,omitempty"`
}

// carry returns the results. A test that runs ends with the process.
func (s *selfTest) carry() (all []CarriedTest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.results {
		if r.result == testInProgress {
			r.result = testEnded
		}
		all = append(all, CarriedTest{r.code, r.result, r.hours, r.lba, r.key, r.asc})
	}
	return all
}

// restore files results of another process, unless there are some.
func (s *selfTest) restore(all []CarriedTest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.results) > 0 {
		return // by another place of the volume
	}
	for _, r := range all[:min(len(all), maxTestResults)] {
		s.results = append(s.results, testResult{r.Code & 7, r.Result & 0xF, r.Hours, r.LBA, r.Key, r.ASC})
	}
}

// CarriedAccess is an asymmetric access state.
type CarriedAccess struct {
	State AccessState `json:"state"`
	Cause uint32      `json:"cause"` // see path
}

// Carry returns what differs from what the configuration and the files say.
func (d *Device) Carry() (all []CarriedState, err error) {
	for _, lu := range d.LUs() {
		s := CarriedState{LUN: lu.lun}
		if v := lu.modes.values(); v != *lu.modes.saved.Load() {
			if s.Modes, err = json.Marshal(v); err != nil {
				return nil, err
			}
		}
		for _, g := range d.alua.groups {
			p := &lu.paths[g.index]
			if cause := p.cause.Load(); cause != 0 {
				if s.Access == nil {
					s.Access = map[uint16]CarriedAccess{}
				}
				s.Access[g.id] = CarriedAccess{AccessState(p.state.Load()), cause}
			}
		}
		if s.Tests = lu.selfTest.carry(); s.Tests != nil {
			s.Added = lu.added
		}
		if s.Modes != nil || s.Access != nil || s.Tests != nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// Testing returns the LUNs with a self-test in the background.
func (d *Device) Testing() (luns []uint16) {
	for _, lu := range d.LUs() {
		if lu.selfTest.inBackground() {
			luns = append(luns, lu.lun)
		}
	}
	return luns
}

// Restore puts what another process has carried in force, as far as this device has the
// units and groups. Preconditions: there is no nexus.
func (d *Device) Restore(all []CarriedState) error {
	for i := range all {
		s := &all[i]
		lu := d.lookup(s.LUN)
		if lu == nil {
			continue
		}
		if s.Modes != nil {
			v := lu.modes.values()
			if err := json.Unmarshal(s.Modes, &v); err != nil {
				return fmt.Errorf("target %s, LUN %d: the mode parameters that were handed over: %w", d.cfg.Name, s.LUN, err)
			}
			v.WCE = v.WCE && lu.modes.def.WCE
			lu.modes.set(v)
		}
		if len(s.Tests) > 0 {
			lu.selfTest.restore(s.Tests)
			lu.added = s.Added
		}
		for id, a := range s.Access {
			if g := d.alua.group(id); g != nil && initial(a.State) && a.Cause <= 2 {
				lu.setPath(g, a.State, a.Cause, nil)
			}
		}
	}
	return nil
}
