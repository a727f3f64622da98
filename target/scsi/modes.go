package scsi

import (
	"encoding/json"
	"sync"
	"sync/atomic"

	"softiser/target/volume"
)

// modes are the changeable mode parameters of a logical unit, shared by all
// initiators at all its LUNs. Those that mean something on every wire (write cache, write
// protection, thresholds) are in force in the volume. Commands read them without a lock.
type modes struct {
	dsense atomic.Bool // descriptor sense
	tas    atomic.Bool // TASK ABORTED status for tasks that another initiator aborted
	qerr   atomic.Uint32

	mu sync.Mutex // guards changes, and is held while they are saved

	vol   *volume.Volume
	saved atomic.Pointer[modeValues] // what a reset returns to
	def   modeValues                 // defaults
}

// modeValues is a set of mode parameters as it is saved.
type modeValues struct {
	WCE    bool   `json:"wce"`
	SWP    bool   `json:"swp"`
	DSense bool   `json:"d_sense"`
	TAS    bool   `json:"tas"`
	QERR   uint32 `json:"qerr"`
	// LBPERE and Thresholds mean something where the volume meters its space.
	LBPERE     bool                                   `json:"lbpere"`
	Thresholds [volume.MaxThresholds]volume.Threshold `json:"thresholds"`
}

// init takes over what was saved; parameters that it does not know have their defaults.
func (m *modes) init(v *volume.Volume) error {
	m.vol = v
	meters := v.Space.Meters()
	m.def = modeValues{WCE: v.Geo().Info.WriteCache, LBPERE: meters}
	now := m.def
	if p := v.SavedParameters(); p != nil {
		if json.Unmarshal(p, &now) != nil {
			return v.BadState()
		}
		now.WCE = now.WCE && m.def.WCE
		now.LBPERE = now.LBPERE && meters
	}
	m.saved.Store(&now)
	m.set(now)
	return nil
}

// flushOld flushes what an earlier life of the volume may have acknowledged with the cache on:
// now that it is off, nobody else does. Preconditions: the device is open.
func (m *modes) flushOld() {
	if m.def.WCE && !m.vol.WriteCache() {
		m.vol.FlushBehind()
	}
}

// reload takes over what another node has saved. What cannot be understood counts as
// nothing saved: the reservations in the same record have been.
func (m *modes) reload() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init(m.vol) != nil {
		def := m.def
		m.saved.Store(&def)
		m.set(def)
	}
	m.flushOld()
}

func (m *modes) restore() { m.set(*m.saved.Load()) }

func (m *modes) values() modeValues {
	lbpere, thresholds := m.vol.Space.Configured()
	return modeValues{m.vol.WriteCache(), m.vol.Gates()&volume.WriteProtected != 0, m.dsense.Load(), m.tas.Load(), m.qerr.Load(), lbpere, thresholds}
}

func (m *modes) set(v modeValues) {
	m.vol.SetWriteCache(v.WCE)
	m.dsense.Store(v.DSense)
	m.tas.Store(v.TAS)
	m.qerr.Store(v.QERR)
	m.vol.SetGate(volume.WriteProtected, v.SWP)
	m.vol.Space.Configure(v.LBPERE, v.Thresholds)
}

// save makes v what a reset and a restart return to. Preconditions: m.mu is held.
func (m *modes) save(v modeValues) error {
	var p json.RawMessage
	if v != m.def {
		var err error
		if p, err = json.Marshal(v); err != nil {
			return err
		}
	}
	if err := m.vol.SaveParameters(p); err != nil {
		return err
	}
	m.saved.Store(&v)
	return nil
}
