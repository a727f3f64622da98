package volume

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzState reads state files, and what another process has carried. What is understood is told
// again as the same, and by a volume that is shared so much that another node has all of it.
func FuzzState(f *testing.F) {
	const key = "naa.6"
	f.Add([]byte(`{"version":1,"unit":"naa.6","modes":{"a":1},"persistent_reservation":{"type":3,"holder":{"initiator_port":"i","target":"t","target_port":1}},
		"registrations":[{"initiator_port":"i","target":"t","target_port":1,"key":7,"all_target_ports":true},{"initiator_port":"j","target_port":2,"key":8,"user":"u"}]}`))
	f.Add([]byte(`{"version":2,"unit":"naa.6","persistent_reservation":{"type":7},"registrations":[{"initiator_port":"i","key":7}],"generation":9,"volatile":true,"uncorrectable":"0-512 1024-4096","atomic_done":4294967297}`))
	f.Add([]byte(`{"version":3,"unit":"naa.6","operation":{"kind":1,"passes":1,"pass":0,"offset":512,"pattern":"AAAA","token":"x"},"ended":"y","write_protected":true,"sanitized":{"kind":2,"passes":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &state{key: key}
		kept, ok := s.parse(b)
		if ok && laterVersion(b) != 0 {
			t.Error("a file of a later version is understood")
		}
		c := Carried{Reservations: b}
		if err := c.Check(); err != nil && ok && len(kept.Regs) <= maxRegistrations {
			t.Errorf("%s: %v", b, err)
		}
		if !ok {
			return
		}
		r := restoreReservations(&kept)
		if r.Type != NoReservation && !r.Type.Valid() || len(r.Registrants()) > len(kept.Regs) {
			t.Fatalf("%+v of %s", r, b)
		}
		next := kept
		r.tell(&next, true)
		told, err := json.Marshal(&next)
		if err != nil {
			t.Fatal(err)
		}
		again, ok := s.parse(told)
		if !ok {
			t.Fatalf("%s became %s", b, told)
		}
		restoreReservations(&again).tell(&again, true)
		if twice, err := json.Marshal(&again); err != nil || !bytes.Equal(twice, told) {
			t.Fatalf("%s became %s, then %s, %v", b, told, twice, err)
		}
	})
}
