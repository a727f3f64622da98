// Package nvmf serves volumes as NVMe namespaces: it is the front end for NVMe over
// Fabrics, beside that for iSCSI.
//
//	Frontend                    subsystems, and the connections on their way to one
//	  subsystem                 NQN, namespaces, who may connect
//	    namespace               a place of a volume (target/volume)
//	    controller              an association with one host: admin queue and I/O queues
//	      queue                 one connection: commands in, completions out
//	        request             a command in one of the queue's slots; embeds volume.Op
//
// A connection becomes a queue by its Connect command. That of the admin queue makes a
// controller, those of the I/O queues name it. A controller ends with its admin queue,
// with any of its queues, when its host is silent for longer than it has promised, and
// when its subsystem goes; then all of its queues end and its commands are aborted.
//
// The discovery subsystem is one like others, with other commands and no namespaces.
//
// # Commands
//
// A command is looked up in one of three tables: Fabrics, admin, I/O. Admin and Fabrics
// commands are carried out on the receive goroutine, where none of them waits. I/O commands,
// and the admin commands that change a volume (Format NVM, Sanitize, write protection),
// enter the task set of their volume as those of every other wire do, and are checked
// against access state, write protection, reservations and size twice: when they arrive,
// and when they take effect. A Compare and the Write that is fused to it are one operation
// there (fused.go).
//
// What a kind of command does is in a view of its request: adminRequest, connectRequest and
// authRequest; volumeRequest for what every command of a volume passes through (admit.go), and
// above it readRequest, writeRequest, scanRequest, zeroRequest, flushRequest, copyRequest,
// reservationRequest, rewriteRequest and protectRequest. fusedRequest is two requests. A view
// is the request's pointer with other methods: there is nothing to allocate.
//
// # Locks
//
//	Frontend.mu ──▶ subsystem.mu ──▶ controller.mu
//
// Each guards the fields that say so. None is held across Push, or while a transport
// ends.
package nvmf
