// Package port is what the queue pairs of one local address share: the sockets of UDP
// port 4791, the check of every packet that comes, the way to the queue pair it is for,
// and the connection manager behind queue pair 1.
//
//	          udp.Receiver, a goroutine each
//	                 │ datagram
//	receiver  lengths ► queue pair ► source ► ICRC ► identification
//	                 │ packet                            of the source
//	        ┌────────┴─────────┐
//	 queue pair 1 (gsi)     others: Attach
//	        │ MAD
//	   cm.Manager ── Send ── gsi ── udp.Lane
//
// What fails a check is counted and dropped, without an answer: a packet from somebody
// who is not the queue pair's peer, or a damaged one, changes nothing.
package port
