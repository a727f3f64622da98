package rdma

// extState says whether the operations of RFC 7306 may be used.
type extState uint8

const (
	extOff     extState = iota // not allowed, or the peer does not know them
	extPending                 // being found out; such requests wait
	extOn
)

// extRx reports whether the peer may use them towards us.
func (qp *QP) extRx() bool {
	qp.sqMu.Lock()
	defer qp.sqMu.Unlock()
	return qp.ext == extOn
}
