// Package nvmf serves volumes as NVMe namespaces: it is the front end for NVMe over
// Fabrics, as target/iscsi is for iSCSI.
//
//	Frontend                    subsystems, and the connections on their way to one
//	  subsystem                 NQN, namespaces, who may connect
//	    namespace               a place of a volume (target/volume)
//	    controller              an association with one host: admin queue and I/O queues
//	      queue                 one connection: commands in, completions out
//	        request             a command in one of the queue's slots; embeds volume.Op
//
// A connection becomes a queue by its Connect command. The Connect of an admin queue creates
// a controller, that of an I/O queue names an existing one. A controller ends with its admin
// queue, when its host breaks the protocol on any queue, when the host is silent for longer than
// its keep alive timeout, and when its subsystem is removed; then all of its queues are closed
// and its commands aborted. When an I/O queue is closed, only its own commands are aborted.
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
// reservationRequest, rewriteRequest, markRequest and protectRequest. fusedRequest is two requests. A view
// is the request's pointer with other methods: there is nothing to allocate.
//
// # Locks
//
//	Frontend.mu ──▶ subsystem.mu ──▶ controller.mu
//
// Each guards the fields that say so. None is held across Push, or while a transport
// ends.
//
// # NVMe as a second front end over the same volumes (ADR 121)
//
// Context. Every Linux kernel of the last years attaches NVMe/TCP without a module of ours. The volume
// core (ADR 119) knows no protocol, and portals tell front ends apart by the first bytes.
//
// Decision. target/nvmf is a front end beside target/iscsi. Its requests embed volume.Op and enter the
// task set of their volume as SCSI's tasks do, so ordering, ranges, rate limits, reservations and
// aborts are one under both wires. A namespace is a place of a volume; its NGUID is the volume's NAA
// name, its EUI-64 the EUI, its UUID derived from the same key. Between the front end and what carries
// capsules is a seam as the one for iSCSI (nvme.QueueTransport, nvme.QueueUpper); internal/nvmetcp is
// the first transport.
//
// A controller ends with its admin queue, or when its host breaks the protocol on any queue, and its
// commands are aborted then; an I/O queue that is closed takes its own commands along and nothing
// else, because Linux closes them before it shuts the controller down. A write that is with the device
// keeps its blocks until it has ended, so that nothing of a host that is gone comes over what others
// write. That a breach on one I/O queue ends all of them is what Linux' target does too
// (nvmet_ctrl_fatal_error): a transport error on any queue is one of the association's for its hosts,
// which tear down every queue and connect again, and a host that sends what it must not cannot be
// trusted with the queues next to it. SUCCESS in C2HData is set only when the host has turned flow
// control off, as the standard has it; SPDK's target sets it always. In-capsule data and parameters
// are counted against the staging memory that all hosts share; what finds no room is answered with
// Command Interrupted, which a host tries again.
//
// Other ways. A translation to CDBs above the SCSI device server: unit attentions, sense and ALUA
// would have had to be undone again, and a host identifier is no I_T nexus.
//
// Consequences. A registrant of NVMe is shown by SCSI's READ FULL STATUS as an initiator device named
// nvme,…; one of SCSI by Reservation Report under a host identifier derived from its name.
//
// # What an NVMe host does to a medium, it does to the volume (ADR 134)
//
// Context. Format NVM, Sanitize and Namespace Write Protection change volumes that other wires serve
// too. SCSI has the same with other borders: its sanitize is of one unit, its software write
// protection goes with saved mode pages.
//
// Decision. Format and Sanitize are the volume's rewrites, so that gates, saved state, restart and
// failure are one for every wire; a sanitize by SCSI is in the NVMe log and raises its event. Sanitize
// of a subsystem is that of all its volumes, begun one after the other; the subsystem's state is that
// of the worst. It is offered if every volume of the subsystem offers it, Format if one does.
//
// The volume remembers the last sanitize that ended well, because the log outlives a restart. It says
// nothing of what was written since.
//
// NVMe's write protection is a gate of its own, kept with the volume, beside SCSI's. Each wire sees
// that the volume is protected, and lifts only what it has set: lifting the other's would change mode
// pages that somebody has saved. Both are set with every block held, so no write is under way when the
// answer goes out.
//
// A secure erase writes over the blocks, or has a device that can erase do it: a deallocation leaves
// the old data where it was.
//
// Other ways. One flag for both protections: the last mode page that is loaded at a start would win
// over what the NVMe host was promised.
//
// Consequences. A host that cannot lift a protection is told that the feature cannot be changed; which
// side holds it is in the other's mode page.
//
// # A namespace is an ANA group, in the state of its volume (ADR 135)
//
// Context. Volumes move between nodes one by one, and one volume may be a LUN and a namespace. SCSI
// has access states by unit and target port group, NVMe by group of namespaces and controller. Nobody
// wants to say the same thing twice in the middle of a failover.
//
// Decision. Each namespace is an ANA group of its own, with its identifier as the number. Its state
// through a controller is that of its volume through the portal group that the controller came by. A
// LUN tells its volume whenever its state changes, by the configuration, lun access or SET TARGET PORT
// GROUPS, so its namespaces follow; the last that says something counts. lun access NQN NSID GROUP
// STATE says it of the namespace alone.
//
//	ALUA                                    ANA
//	active-optimized, active-non-optimized  optimized, non-optimized
//	standby, unavailable                    inaccessible
//	offline                                 persistent loss
//	transitioning                           change
//
// At the start a namespace is in the state that its own ana and ana_groups give, through every portal
// group; one that has none leaves its volume as it is, which LUNs with alua may have said something
// of. As one state holds for all wires, check refuses places of a volume with a namespace that say
// different ones.
//
// When a LUN goes its volume stays in the state that it has given: the volume may be in standby
// because another node writes it, and a removal here is no reason to begin. lun remove says which
// namespaces stay as they were and what changes that; status shows every namespace that is not
// optimized.
//
// The state is looked at when a command arrives and when it takes effect. The status has no DNR, with
// which Linux would not try another path.
//
// Other ways. LUNs could follow namespaces as well. Two targets may serve a volume in different states
// today, and unit attentions would come for what nobody has said of them. One group for all namespaces
// makes a short log and a failover of everything at once.
//
// Consequences. The log of a subsystem with 1024 namespaces has 36 KiB; Linux reads it whole, within
// one transfer.
//
// # Discovery: a name of its own, and what a node knows of others (ADR 144)
//
// Context. Every discovery service answers to one well-known name, so a host that keeps connections to
// two of them (TP8013) cannot tell them apart, and Linux takes each connection for a subsystem of its
// own. A volume that several nodes serve is found on each of them separately, unless somebody tells
// the host of all.
//
// Decision. discovery.nqn is a second name of the node's discovery service. Both names lead to one
// subsystem, with one set of controller identifiers; Identify and the entries of type 3 tell the
// second one. Without it everything is as before: a name made up by us would be another one after the
// machine has been installed anew, or the same on two machines that are copies.
//
// discovery.referrals are entries of type 1. Every host that may ask is told of them: what it may see
// there the other service decides. remote of a subsystem are entries of type 2 for other nodes'
// portals, with the same requirements for TLS and for the same hosts as our own; it stands at the
// subsystem because nodes need not share all they serve. check wants what hosts need then: a range of
// controller identifiers for each node, and a wwid for each volume, from which its NGUID and UUID
// come. Addresses are numbers: what the log has is no name.
//
// Both can be changed while hosts are connected; a persistent host is told, as it is of subsystems and
// of rights.
//
// An entry of type 3 claims that all portals tell the same (DUPRETINFO) where it follows from the
// configuration: each portal has a fixed address, and all are for the same reach (everywhere, this
// machine, or the link); or there is only one.
//
// Other ways. ANA log entries for other nodes' portals: the log is that of one controller, and its
// host asks each controller. A list of portals of other nodes beside portals, for all wires: access
// states of SCSI would have to be known for them, which is a matter of nodes that talk to each other.
//
// Consequences. That the other node really serves the subsystem, with the same serial number, nobody
// checks here.
//
// # A host that has proved its name has a share of its own (ADR 145)
//
// Context. Controllers, and the memory that hosts make the target hold, are divided between addresses
// (ADR 102). Many hosts may be behind one address (NAT, containers). With iSCSI a CHAP user has a
// share of his own; of NVMe hosts the address was all that counted, although they prove their names
// too.
//
// Decision. A connection holds what it holds on the share of its address, until the name of its host
// is proved on it: by the identity of the TLS key when Connect names the same host, or by
// DH-HMAC-CHAP. From then on the share is that of the host's NQN, whatever address it comes from; what
// the connection holds at that moment goes along. Counts change without a lock: who holds or gives
// back changes the connection's own count first and asks for the share afterwards, and who moves
// changes the share first.
//
// A controller is made before its host has answered a challenge. Were it counted at the address
// meanwhile, a full address would keep everybody behind it from proving anything. So a controller
// whose host owes a proof is one of a fourth of all that there may be, divided by address as
// everything is, and becomes the host's with the proof. A host that has its share already is told
// Command Interrupted in place of success, and its connection ends.
//
// A name that is only said, or that an access list has, counts for nothing: an address could have as
// many shares as it can make up names.
//
// Other ways. Shares by host NQN and address for everybody: see above. By host identifier: it is not
// proved by anything.
//
// Consequences. A flood of Connects under names that have keys can fill the fourth; from one address
// it is half of that at most. Connections before Connect and messages of authentications are divided
// by address still, as nothing is known of them.
//
// # What NVMe hosts are not offered (ADR 146)
//
// Context. Write Uncorrectable and Namespace Management are optional commands that hosts can send to
// an array. Both would change what a volume is, not what is in it. Neither was offered at first.
//
// Decision. Namespaces are made here: Identify does not claim Namespace Management (OACS), the effects
// log does not have it, and it ends with Invalid Opcode and DNR. iser-target, its configuration and the
// LVM commands know where storage is, what it may be used for and who pays for it; a host that has been
// let in to a volume has no right to any of that. A namespace made by a host would be in no
// configuration file, so that the next reload or restart, or another node with the same file, would not
// have it. Attaching makes no more sense: who sees a subsystem sees its namespaces, and what a host
// shall not see is in another subsystem.
//
// Write Uncorrectable is there for volumes that can keep what it says. A mark is worth something if
// every read finds it: over every wire, after a restart and a power loss, by COMPARE AND WRITE, copies
// and verification. So marks are the volume's (target/volume/marks.go): whatever reads passes by them,
// in one place below all wires, and they are in the state file before the command is answered. A write
// over a marked block is durable first, then the mark's removal, then it is answered. It is received
// into staging memory, which every front end can do already. An atomic write over marked blocks is
// over when one save of the state file takes away the marks and the validity of the entry in the undo
// journal. A state file with marks has a version of its own, so that an earlier program does not serve
// the old data.
//
// Not offered, and Invalid Opcode with DNR: for a volume without a state folder; for logical volumes,
// whose snapshots and exports would show old data as good; for volumes that move between nodes. ONCS and
// the effects log have the command if one namespace of the subsystem offers it. SCSI's WRITE LONG with
// WR_UNCOR is not there.
//
// Other ways. Marks that are lost with the process or with a snapshot: what is said to be lost would
// come back as it was. Marks in the device's format: possible for LVM's thin pools alone.
//
// Consequences. A copy of a volume's file, or its state folder lost, has no marks. 4096 ranges can be
// marked; writes may cut them into twice as many pieces, and one that would make more fails for want of
// space. Writes into marked ranges cost a flush and a save each. A host that copies a disk with bad
// blocks onto a volume that offers no marks leaves whatever was in their place.
package nvmf
