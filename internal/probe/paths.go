package probe

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Subflow is a TCP connection of an MPTCP connection, as the kernel describes it.
type Subflow struct {
	ID            uint32 // constant while the subflow lives; 1 is the first
	Local, Remote netip.AddrPort
	BytesReceived uint64
	BytesAcked    uint64        // number of sent bytes that were acknowledged
	RTT           time.Duration // smoothed
}

// Direct names the path of plain TCP and of a connection's first subflow. Unknown is the name if the kernel does not
// report the path.
const (
	Direct  = "direct"
	Unknown = "unknown"
)

// paths records which subflows bring a connection's replies.
type paths struct {
	conn   net.Conn
	way    Way
	name   func(Subflow) string
	names  map[uint32]string // names that do not change any more
	latest map[uint32]string
	before map[uint32]uint64
}

func newPaths(conn net.Conn, way Way, name func(Subflow) string) *paths {
	return &paths{conn: conn, way: way, name: name, names: map[uint32]string{}, latest: map[uint32]string{}}
}

// begin records what has arrived before a reply.
func (p *paths) begin() {
	p.before = map[uint32]uint64{}
	for _, s := range p.subflows() {
		p.before[s.ID] = s.BytesReceived
	}
}

// end returns the path that brought most of the reply.
func (p *paths) end() string {
	if p.way == TCP || p.plain() {
		return Direct
	}
	best, most := Unknown, uint64(0)
	for _, s := range p.subflows() {
		if n := s.BytesReceived - p.before[s.ID]; n > most {
			best, most = p.latest[s.ID], n
		}
	}
	return best
}

// total returns how many bytes each path brought, and whether the connection is plain TCP although MPTCP was requested.
func (p *paths) total() (bytes map[string]uint64, fellBack bool) {
	if p.way == TCP {
		return nil, false
	}
	for _, s := range p.subflows() {
		if bytes == nil {
			bytes = map[string]uint64{}
		}
		bytes[p.latest[s.ID]] += s.BytesReceived
	}
	return bytes, p.plain()
}

// plain reports whether the connection is plain TCP.
func (p *paths) plain() bool {
	c, ok := p.conn.(*net.TCPConn)
	if !ok {
		return false
	}
	used, err := c.MultipathTCP()
	return err == nil && !used
}

// subflows lists the subflows, and names new ones.
func (p *paths) subflows() []Subflow {
	if p.way == TCP {
		return nil
	}
	info, _ := Info(p.conn) // kernels before 6.5 report nothing, so the paths are unknown
	for _, s := range info.Subflows {
		if p.names[s.ID] != "" {
			continue
		}
		name, certain := Direct, true
		if s.ID != firstSubflow {
			name, certain = p.joined(s)
		}
		if certain {
			p.names[s.ID] = name
		}
		p.latest[s.ID] = name
	}
	return info.Subflows
}

// joined names a subflow that is not the first. As long as p.name does not know it, it gets a preliminary name, and
// certain is false.
func (p *paths) joined(s Subflow) (name string, certain bool) {
	if p.name == nil {
		return p.byAddresses(s), true
	}
	if name := p.name(s); name != "" {
		return name, true
	}
	return p.byAddresses(s), false
}

// byAddresses names a subflow by the address that distinguishes it from the first.
func (p *paths) byAddresses(s Subflow) string {
	if remote, ok := p.conn.RemoteAddr().(*net.TCPAddr); ok && remote.AddrPort().Addr().Unmap() == s.Remote.Addr() {
		return "from " + s.Local.Addr().String()
	}
	return "to " + s.Remote.Addr().String()
}

const firstSubflow = 1

// SocketInfo describes an MPTCP socket.
type SocketInfo struct {
	Token    uint32
	Subflows []Subflow
}

// fullInfo is struct mptcp_full_info of linux/mptcp.h, without its last member, struct mptcp_info.
type fullInfo struct {
	sizeTCPInfoKernel, sizeTCPInfoUser uint32
	sizeSubflowKernel, sizeSubflowUser uint32
	numSubflows, sizeArrays            uint32
	subflowInfo, tcpInfo               uint64
	info                               [32]uint32 // struct mptcp_info, as far as the kernel fills it in
}

// subflowInfo is struct mptcp_subflow_info.
type subflowInfo struct {
	id            uint32
	_             uint32
	local, remote [128]byte // struct sockaddr_storage
}

const (
	mptcpFullInfo = 4
	tokenWord     = 3 // index of the token in struct mptcp_info
	maxSubflows   = 16
)

// Info returns what the kernel knows of a connection's MPTCP socket (MPTCP_FULL_INFO). It needs Linux 6.5, and no
// privileges. The error is EOPNOTSUPP for a connection that is plain TCP.
func Info(conn net.Conn) (SocketInfo, error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return SocketInfo{}, errors.ErrUnsupported
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return SocketInfo{}, err
	}
	var subflows [maxSubflows]subflowInfo
	var tcp [maxSubflows]unix.TCPInfo
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&subflows)
	pinned.Pin(&tcp)
	full := fullInfo{
		sizeTCPInfoUser: uint32(unsafe.Sizeof(tcp[0])), sizeSubflowUser: uint32(unsafe.Sizeof(subflows[0])), sizeArrays: maxSubflows,
		subflowInfo: uint64(uintptr(unsafe.Pointer(&subflows))), tcpInfo: uint64(uintptr(unsafe.Pointer(&tcp))),
	}
	size := uint32(unsafe.Sizeof(full))
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_MPTCP, mptcpFullInfo, uintptr(unsafe.Pointer(&full)), uintptr(unsafe.Pointer(&size)), 0)
	})
	if err != nil {
		return SocketInfo{}, err
	}
	if errno != 0 {
		return SocketInfo{}, os.NewSyscallError("getsockopt MPTCP_FULL_INFO", errno)
	}
	found := SocketInfo{Token: full.info[tokenWord]}
	for i := range min(full.numSubflows, maxSubflows) {
		found.Subflows = append(found.Subflows, Subflow{
			ID: subflows[i].id, Local: sockaddr(&subflows[i].local), Remote: sockaddr(&subflows[i].remote), BytesReceived: tcp[i].Bytes_received,
			BytesAcked: tcp[i].Bytes_acked, RTT: time.Duration(tcp[i].Rtt) * time.Microsecond,
		})
	}
	return found, nil
}

// sockaddr decodes a struct sockaddr_storage.
func sockaddr(data *[128]byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(data[2:])
	switch binary.NativeEndian.Uint16(data[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(data[4:8])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(data[8:24])).Unmap(), port)
	default:
		return netip.AddrPort{}
	}
}

// bindPort binds a socket before it connects, so that its local address is known in advance.
func bindPort(address string, source net.IP, raw syscall.RawConn) (local net.Addr, err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	from, err := sourceFor(to, source)
	if err != nil {
		return nil, err
	}
	e := raw.Control(func(fd uintptr) {
		if source == nil {
			if from.Is4() {
				err = unix.Bind(int(fd), &unix.SockaddrInet4{Addr: from.As4()})
			} else {
				err = unix.Bind(int(fd), &unix.SockaddrInet6{Addr: from.As16()})
			}
		}
		if err != nil {
			err = os.NewSyscallError("bind", err)
			return
		}
		var name unix.Sockaddr
		if name, err = unix.Getsockname(int(fd)); err != nil {
			return
		}
		switch a := name.(type) {
		case *unix.SockaddrInet4:
			local = &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
		case *unix.SockaddrInet6:
			local = &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
		}
	})
	return local, errors.Join(err, e)
}

// sourceFor returns the local address that the kernel would choose.
func sourceFor(to netip.AddrPort, source net.IP) (netip.Addr, error) {
	if source != nil {
		a, _ := netip.AddrFromSlice(source)
		return a.Unmap(), nil
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) // sends nothing
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
