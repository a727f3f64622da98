package verbs

// Local does a request that does not go to the wire, for an engine that has finished all
// before it. Whatever revokes memory waits for those who move data from it or to it: the
// caller holds no lock that they need.
func (qp *QP) Local(e *WQE) Status {
	switch e.Op {
	case OpLocalInv:
		r := qp.Dev.Table.Lookup(e.Inv)
		if r == nil || !r.RevokeNamed(qp.PD, &qp.Mem, e.Inv) {
			return StatusInvalidated
		}
	case OpRegMR:
		e.MR.Revoke()
		var p []byte
		if len(e.Segs) > 0 {
			p = e.Segs[0]
		}
		e.MR.Aim(p, e.Access, uint32(e.Key))
	case OpBindMW:
		e.Window.Revoke()
		e.Window.OpenKey(&qp.Mem, e.Segs, e.Access, e.Key)
	}
	return StatusSuccess
}
