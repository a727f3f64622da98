package scsi

// stageFree is the staging buffer that every command may have, bytes.
const stageFree = 8 << 10

// stageBuf is getBuf for n bytes that the initiator is to fill, for which there must be
// room in what all initiators have together. It reports false when there is none. A
// little is free for every command: what has come with one and is to be joined with
// the rest is no longer over iSER, and the window bounds how many there are.
func (t *Task) stageBuf(n int) bool {
	t.putBuf()
	if n > stageFree {
		if !t.dev.cfg.Staging.Reserve(n) {
			return false
		}
		t.reserved = n
	}
	t.getBuf(n)
	return true
}

// getBuf lends t a buffer of at least n bytes, in t.buf with its full length.
func (t *Task) getBuf(n int) []byte {
	t.putBuf()
	t.buf = t.dev.bufs.Get(n)
	return t.buf
}

func (t *Task) putBuf() {
	if t.buf != nil {
		t.dev.bufs.Put(t.buf)
		t.buf = nil
		t.dev.cfg.Staging.Unreserve(t.reserved)
		t.reserved = 0
	}
}
