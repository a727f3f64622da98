package pdustream

import "testing"

// Within the data of a PDU there is no telling apart what has been read of it.
func TestUnread(t *testing.T) {
	r := Receiver{buf: []byte("abcdef"), r: 1, w: 4}
	for _, ph := range []phase{atStart, inHeader, inData, inTail} {
		r.phase = ph
		if b := r.Unread(); ph <= inHeader && string(b) != "bcd" || ph > inHeader && b != nil {
			t.Errorf("phase %d: %q", ph, b)
		}
	}
}
