package port

import "sync/atomic"

type counters struct {
	packets, malformed, badPKey, noQP, notPeer, badICRC, strangeID, notMAD, unsent atomic.Uint64
}

// Stats counts the packets that have come, by what became of them.
type Stats struct {
	Packets   uint64 // handed to a queue pair, as rcvd_pkts of rxe
	Malformed uint64 // too short, or of an unknown kind
	BadPKey   uint64 // of another partition
	NoQP      uint64 // for a queue pair that does not exist
	NotPeer   uint64 // for one that is connected to somebody else
	BadICRC   uint64 // damaged, or with an IP header that its sender did not count on
	StrangeID uint64 // with an ICRC that is right for an identification the sender would not send
	NotMAD    uint64 // to queue pair 1, and no management datagram
	Unsent    uint64 // management datagrams that the kernel would not send
}

// Stats is a snapshot.
func (p *Port) Stats() Stats {
	c := &p.stat
	return Stats{
		Packets: c.packets.Load(), Malformed: c.malformed.Load(), BadPKey: c.badPKey.Load(), NoQP: c.noQP.Load(), NotPeer: c.notPeer.Load(),
		BadICRC: c.badICRC.Load(), StrangeID: c.strangeID.Load(), NotMAD: c.notMAD.Load(), Unsent: c.unsent.Load(),
	}
}
