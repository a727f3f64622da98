// Package capture writes what connections of this process have sent and received as a pcap file,
// which Wireshark and tshark decode: Ethernet, IP and TCP headers are made up around it. Nothing
// is lost or sent twice in such a stream, however TCP has carried it; what there was no room to
// copy is a gap in the sequence numbers. What TLS has carried is in it without TLS.
package capture
