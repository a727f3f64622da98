// Package ud is RoCE's unreliable datagrams (IBA vol. 1 §9.8.3) as a machine without I/O:
// messages of one packet each, from anybody to anybody, multicast groups included.
//
//	send queue --> Sender.Next --> packets, each with a Destination   completed by Sent
//	packets --> Receiver.Receive --> receive buffers, completions: TakeWCs
//
// A queue pair takes packets that carry its Q_Key, and drops the others: whoever is to
// send to it has been told the key, by a connection manager for one. Every receive buffer
// begins with 40 bytes for the network header (GRH), by which the sender can be answered:
//
//	IPv6:  | IPv6 header, 40                      | payload
//	IPv4:  | zeros, 20        | IPv4 header, 20   | payload
//
// A datagram that finds no buffer, or one that is too small, is lost; nobody is told.
package ud
