// Package rc is RoCE's reliable connection as a machine without I/O, clocks and
// goroutines: packets go in, packets and completions come out.
//
//	packets of requests --> Responder.Receive --> memory (package mem), receive buffers,
//	                            |                 completions: TakeWCs
//	                            v
//	                        answers --> Responder.Next --> packets of answers
//
// The Responder executes requests in the order of their PSNs, each once (IBA vol. 1
// §9.7.4, §9.7.5):
//
//   - the expected packet is executed and, if it asks for it, acknowledged;
//   - one ahead means that others were lost: one NAK names the expected PSN, and then
//     there is silence until that has come, or the peer has gone back and it has not;
//   - one behind is a duplicate: it is acknowledged again, a READ is executed again, an
//     atomic's result is told again, for as many of them as are remembered.
//
// Answers leave in the order of the requests. What a READ's answer carries is a reference
// into the memory, which is asked for anew with every packet, so that a key that has been
// revoked in the middle ends the connection instead of showing what it no longer opens.
//
//	send queue --> Requester.Next --> packets of requests
//	                   ^
//	answers --> Requester.Receive, Tick --> completions of the send queue
//
// The Requester cuts the send queue into packets, keeps a window of them in flight, and
// goes back to the oldest one without an answer when something was lost, which a NAK, a
// gap between answers or the clock tells.
package rc
