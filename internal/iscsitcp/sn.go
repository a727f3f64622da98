package iscsitcp

import "softiser/internal/iscsi"

// taskSN is what this datamover keeps in the Ref of a command of the target: the
// numbers of its next Data-In and R2T, which run on through all its transfers (RFC
// 7143 §4.2.2.4). Guarded by Conn.mu.
type taskSN iscsi.Ref

func snOf(r *iscsi.Ref) *taskSN { return (*taskSN)(r) }

func (s *taskSN) dataSN() uint32       { return uint32(s[0]) }
func (s *taskSN) setDataSN(sn uint32)  { s[0] = uint64(sn) }
func (s *taskSN) r2tSN() uint32        { return uint32(s[1]) }
func (s *taskSN) setR2TSN(next uint32) { s[1] = uint64(next) }
