// Package uc is RoCE's unreliable connection (IBA vol. 1 §9.8.2) as a machine without
// I/O: SENDs and WRITEs in packets that nobody acknowledges.
//
//	send queue --> Sender.Next --> packets            completed by Sent, when they have left
//	packets --> Receiver.Receive --> memory (package mem), receive buffers, completions: TakeWCs
//
// A packet that was lost takes its message with it: the Receiver drops what comes until
// the next message begins. Neither side is told, so an application has to find gaps itself.
// There are no READs, no atomics and no invalidation of keys.
//
// PSNs show gaps and nothing else: a message of one packet that comes twice, or behind a
// later one, is executed when it comes, as the standard has it and as Linux's rxe does.
package uc
