package nvme

import "testing"

// An answer is taken for the command that it answers, never for an earlier or a later
// one in the same slot.
func TestHostTable(t *testing.T) {
	tab := NewHostTable(3)
	c := &HostCommand{Slot: 2}
	if err := tab.Add(c); err != nil {
		t.Fatal(err)
	}
	first := c.SQE.CID()
	if tab.Find(first) != c || tab.Len() != 1 {
		t.Error("an outstanding command is not found")
	}
	if err := tab.Add(&HostCommand{Slot: 2}); err != ErrHostSlot {
		t.Errorf("a slot is used twice: %v", err)
	}
	for _, cid := range []uint16{0, 1, 2, first + 1, first ^ 1<<hostSlotBits, 1023, 0xFFFF} {
		if tab.Find(cid) != nil {
			t.Errorf("found %04xh, only %04xh is outstanding", cid, first)
		}
	}
	tab.Remove(c)
	if tab.Find(first) != nil || tab.Len() != 0 {
		t.Error("a command is found that has been answered")
	}
	if err := tab.Add(c); err != nil {
		t.Fatal(err)
	}
	if tab.Find(first) != nil || tab.Find(c.SQE.CID()) != c {
		t.Error("an answer to an earlier command of the slot is taken for this one's")
	}
	for _, slot := range []int{-1, 3} {
		if err := tab.Add(&HostCommand{Slot: slot}); err != ErrHostSlot {
			t.Errorf("slot %d of 3: %v", slot, err)
		}
	}
}
