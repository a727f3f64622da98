package rdma

// SetMSN makes the next messages of every queue carry the number sn, and expects
// it of the peer. Nothing may be on its way.
func SetMSN(qp *QP, sn uint32) {
	qp.sqMu.Lock()
	defer qp.sqMu.Unlock()
	for i := range qp.tx.msn {
		qp.tx.msn[i], qp.rx.msn[i] = sn, sn
	}
}

// In tests a transition that the table of states does not have is a panic.
func init() { badTransition = func(err error) { panic(err) } }
