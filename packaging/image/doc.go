// Command image makes an OCI image of both programs for several architectures, without a
// daemon, a registry or root: one tar archive with the OCI image layout inside, which podman, skopeo,
// containerd and `docker load` (25 and later) read.
//
//	go run ./packaging/image -version 0.1.0 -revision 1234abcd -out build/image.tar amd64=DIR arm64=DIR
//
// DIR holds iser-target and iser-initiator, static, of that architecture. The same programs and the
// same SOURCE_DATE_EPOCH make the same bytes.
//
// What is inside: the programs, an account (65532, not root), the folders that the target writes to.
// There is no shell, no C library and no certificates: whoever checks certificates of public
// authorities (s3:// over HTTPS) mounts /etc/ssl/certs; TLS of portals and of --tls has files of its own.
//
// rootfs.go says what is in the file system, image.go how it is started and described, layout.go
// how it is packed. Containerfile makes the same for those who build with a daemon.
package main
