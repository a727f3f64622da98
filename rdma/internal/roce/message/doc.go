// Package message moves SENDs and RDMA WRITEs, which reliable and unreliable
// connections cut into packets in the same way (IBA vol. 1 §9.8 says of the second how
// they differ, which is in what happens after a fault):
//
//	a request of the send queue --Segment--> packets --In.Execute--> memory, receive buffers,
//	                                                                 completions: In.TakeWCs
//
// Nothing here knows PSNs or answers. A fault is told as a [Fault], for the service to
// decide what becomes of it: a NAK on one kind of connection, silence on the other.
package message
