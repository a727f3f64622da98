package roce

import "softiser/rdma/internal/verbs"

// local does a request that does not go to the wire; all before it has been answered.
func (qp *base) local(e *verbs.WQE) verbs.Status {
	switch e.Op {
	case verbs.OpLocalInv:
		r := qp.Dev.Table.Lookup(e.Inv)
		if r == nil || !r.Matches(qp.PD, &qp.Mem, e.Inv) {
			return verbs.StatusInvalidated
		}
		r.Revoke()
	case verbs.OpRegMR:
		e.MR.Revoke()
		var p []byte
		if len(e.Segs) > 0 {
			p = e.Segs[0]
		}
		e.MR.Aim(p, e.Access, uint32(e.Key))
	case verbs.OpBindMW:
		e.Window.Revoke()
		e.Window.OpenKey(&qp.Mem, e.Segs, e.Access, e.Key)
	}
	return verbs.StatusSuccess
}
