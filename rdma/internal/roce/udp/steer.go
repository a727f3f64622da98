package udp

import "golang.org/x/sys/unix"

// steerByQPN is the program that picks a receiving socket for a packet, of a power of
// two: by the low bits of the destination queue pair number, which is in bytes 5 to 7
// of the payload. All packets of a queue pair come to one socket then, in order, and
// those of queue pair 1 to socket 1 (or 0, if there is one).
//
// It picks by position in the group, which is the order in which the sockets were
// bound. A packet too short for it is dropped.
func steerByQPN(sockets int) []unix.SockFilter {
	const lastByteOfQPN = 7
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: lastByteOfQPN},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: uint32(sockets - 1)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
}

// ReceiverOf is the index of the receiving socket that gets the packets of a queue pair.
func (p *Port) ReceiverOf(qpn uint32) int { return int(qpn) & (len(p.receivers) - 1) }
