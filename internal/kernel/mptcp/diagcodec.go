package mptcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// diagRequest is struct inet_diag_req_v2. It requests the socket with these addresses. As a dump it requests all
// sockets with the ports that are not 0.
type diagRequest struct {
	family        uint8
	protocol      uint16
	local, remote netip.AddrPort
	token         uint32 // of the MPTCP socket; 0: look up by addresses
}

const (
	diagRequestLen = 56
	diagSockIDLen  = 48
	diagMessageLen = 4 + diagSockIDLen + 20
)

func (r diagRequest) encode() []byte {
	b := make([]byte, diagRequestLen, diagRequestLen+8)
	b[0] = r.family
	b[1] = uint8(r.protocol)
	b[2] = diagExtInfo | diagExtMemory
	binary.NativeEndian.PutUint32(b[4:], diagStates)
	id := b[8:]
	binary.BigEndian.PutUint16(id, r.local.Port())
	binary.BigEndian.PutUint16(id[2:], r.remote.Port())
	copy(id[4:20], r.local.Addr().AsSlice())
	copy(id[20:36], r.remote.Addr().AsSlice())
	for i := 40; i < diagSockIDLen; i++ {
		id[i] = 0xff // INET_DIAG_NOCOOKIE
	}
	if r.token != 0 { // the kernel takes the token of an MPTCP socket from the cookie
		binary.NativeEndian.PutUint32(id[40:], r.token)
	}
	if r.protocol > 0xff {
		b[1] = unix.IPPROTO_RAW // as ss does, with an attribute for the real protocol
		b = binary.NativeEndian.AppendUint16(b, 8)
		b = binary.NativeEndian.AppendUint16(b, diagReqProtocol)
		b = binary.NativeEndian.AppendUint32(b, uint32(r.protocol))
	}
	return b
}

// socket is the fixed part of an answer (struct inet_diag_msg).
type socket struct {
	state         TCPState
	local, remote netip.AddrPort
	ifIndex       int
	queued        uint32 // bytes received in order and not read yet
	uid           uint32 // of the user who made it
	inode         uint32 // 0: no program has it open
}

func decodeSocket(b []byte) (s socket, attrs []byte, err error) {
	if len(b) < diagMessageLen {
		return socket{}, nil, fmt.Errorf("sock_diag answer of %d bytes is cut short", len(b))
	}
	id := b[4:]
	read := ip4
	if b[0] == unix.AF_INET6 {
		read = ip6
	}
	return socket{
		state:   TCPState(b[1]),
		local:   netip.AddrPortFrom(read(id[4:20]), be16(id)),
		remote:  netip.AddrPortFrom(read(id[20:36]), be16(id[2:])),
		ifIndex: int(u32(id[36:])),
		queued:  u32(b[diagMessageLen-16:]),
		uid:     u32(b[diagMessageLen-8:]),
		inode:   u32(b[diagMessageLen-4:]),
	}, b[diagMessageLen:], nil
}

// decodeSubflow fills s from one answer. It returns false if the socket is not a subflow.
func decodeSubflow(b []byte, s *Subflow) (bool, error) {
	sock, attrs, err := decodeSocket(b)
	if err != nil {
		return false, err
	}
	var info, ulp []byte
	var cgroup uint64
	var memory uint32 // SK_MEMINFO_RMEM_ALLOC, the first value: bytes of memory for received data
	for len(attrs) > 0 {
		typ, v, rest, err := nextAttr(attrs)
		if err != nil {
			return false, fmt.Errorf("decode socket %v: %w", sock.local, err)
		}
		attrs = rest
		switch typ {
		case diagAttrInfo:
			info = v
		case diagAttrMemory:
			memory = u32(v)
		case diagAttrULPInfo:
			ulp = v
		case diagAttrCgroup:
			cgroup = u64(v)
		}
	}
	for len(ulp) > 0 {
		typ, v, rest, err := nextAttr(ulp)
		if err != nil {
			return false, fmt.Errorf("decode protocol of socket %v: %w", sock.local, err)
		}
		ulp = rest
		if typ != ulpAttrMPTCP || len(v) == 0 {
			continue
		}
		*s = Subflow{State: sock.state, Local: sock.local, Remote: sock.remote, IfIndex: sock.ifIndex, Cgroup: cgroup}
		decodeMetrics(info, &s.Metrics)
		s.Metrics.Gap = memory > 0 && sock.queued == 0
		if err := decodeULP(v, s); err != nil {
			return false, fmt.Errorf("decode MPTCP state of socket %v: %w", sock.local, err)
		}
		return true, nil
	}
	return false, nil
}

// MPTCP_SUBFLOW_FLAG_*. In these names, "remote" flags come from the peer's options, and "local" ones from this side's
// request when it opened the subflow.
const (
	flagMPCapableRemote = 1 << iota
	flagMPCapableLocal
	flagJoinRemote
	flagJoinLocal
	flagBackupRemote
	flagBackupLocal
	flagFullyEstablished
)

func decodeULP(b []byte, s *Subflow) error {
	var mapped, length uint64
	for len(b) > 0 {
		typ, v, rest, err := nextAttr(b)
		if err != nil {
			return err
		}
		b = rest
		switch typ {
		case subflowAttrMapSeq:
			mapped = u64(v)
		case subflowAttrMapLen:
			length = uint64(u16(v))
		case subflowAttrTokenRemote:
			s.RemoteToken = u32(v)
		case subflowAttrTokenLocal:
			s.Token = u32(v)
		case subflowAttrIDRemote:
			s.RemoteID = u8(v)
		case subflowAttrIDLocal:
			s.LocalID = u8(v)
		case subflowAttrFlags:
			f := u32(v)
			s.Initial = f&(flagMPCapableRemote|flagMPCapableLocal) != 0
			s.ServerSide = f&(flagMPCapableLocal|flagJoinLocal) == 0
			s.BackupLocal = f&flagBackupLocal != 0
			s.BackupRemote = f&flagBackupRemote != 0
			s.FullyEstablished = f&flagFullyEstablished != 0
		}
	}
	if mapped != 0 {
		s.Metrics.DataEnd = mapped + length
	}
	return nil
}

// decodeMetrics decodes struct tcp_info, to which newer kernels append fields. The fields that an older kernel lacks
// stay zero.
func decodeMetrics(b []byte, m *Metrics) {
	var t unix.TCPInfo
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&t)), unsafe.Sizeof(t)), b)
	const optionTimestamps, optionECN = 1, 8 // TCPI_OPT_*
	*m = Metrics{
		RTT:    micros(t.Rtt),
		RTTVar: micros(t.Rttvar),
		MinRTT: minRTT(t.Min_rtt),
		RTO:    micros(t.Rto),

		ReceiverRTT: micros(t.Rcv_rtt),

		SndCwnd:     t.Snd_cwnd,
		SndSSThresh: t.Snd_ssthresh,
		SndMSS:      t.Snd_mss,
		PathMTU:     t.Pmtu,
		SndWnd:      t.Snd_wnd,
		Unacked:     t.Unacked,
		Lost:        t.Lost,
		Sacked:      t.Sacked,
		NotSent:     t.Notsent_bytes,
		Backoff:     t.Backoff,
		Retransmits: t.Retransmits,

		TotalRetrans:  t.Total_retrans,
		NeedlessSent:  t.Dsack_dups,
		BytesSent:     t.Bytes_sent,
		BytesRetrans:  t.Bytes_retrans,
		BytesAcked:    t.Bytes_acked,
		BytesReceived: t.Bytes_received,
		SegsOut:       t.Segs_out,
		SegsIn:        t.Segs_in,
		DataSegsOut:   t.Data_segs_out,
		DataSegsIn:    t.Data_segs_in,
		OutOfOrder:    t.Rcv_ooopack,
		Probes:        t.Probes,

		ECN:        t.Options&optionECN != 0,
		Timestamps: t.Options&optionTimestamps != 0,

		DeliveryRate: t.Delivery_rate,
		PacingRate:   t.Pacing_rate,
		BusyTime:     time.Duration(t.Busy_time) * time.Microsecond,
		RwndLimited:  time.Duration(t.Rwnd_limited) * time.Microsecond,

		LastDataSent: millis(t.Last_data_sent),
		LastDataRecv: millis(t.Last_data_recv),
		LastAckRecv:  millis(t.Last_ack_recv),
	}
}

func micros(v uint32) time.Duration { return time.Duration(v) * time.Microsecond }
func millis(v uint32) time.Duration { return time.Duration(v) * time.Millisecond }

// minRTT returns 0 if the kernel has no measurement yet.
func minRTT(v uint32) time.Duration {
	if v == ^uint32(0) {
		return 0
	}
	return micros(v)
}

// decodeConnection fills c from one answer about an MPTCP socket. It returns false if the socket is not a connection
// with a token.
func decodeConnection(b []byte, c *Connection) (bool, error) {
	sock, attrs, err := decodeSocket(b)
	if err != nil {
		return false, err
	}
	var info, memory []byte
	for len(attrs) > 0 {
		typ, v, rest, err := nextAttr(attrs)
		if err != nil {
			return false, fmt.Errorf("decode MPTCP socket %v: %w", sock.local, err)
		}
		attrs = rest
		switch typ {
		case diagAttrInfo:
			info = v
		case diagAttrMemory:
			memory = v
		}
	}
	if len(info) < mptcpInfoLen {
		return false, nil
	}
	*c = Connection{
		Token:    u32(info[12:]),
		Local:    sock.local,
		Remote:   sock.remote,
		State:    sock.state,
		Fallback: u32(info[8:])&infoFlagFallback != 0,
		orphan:   sock.inode == 0,
		progress: Progress{Received: u64(info[32:]), Acked: u64(info[24:]), SendFull: isSendFull(memory)},
	}
	if len(info) >= mptcpInfoTrafficLen {
		c.Traffic = Traffic{
			BytesRetrans:  u64(info[48:]),
			BytesSent:     u64(info[56:]),
			BytesReceived: u64(info[64:]),
			BytesAcked:    u64(info[72:]),
		}
	}
	return c.Token != 0, nil
}

// isSendFull reports whether two thirds of the send buffer are in use, as sk_stream_is_writeable does. memory has the values
// of SK_MEMINFO_*.
func isSendFull(memory []byte) bool {
	if len(memory) < memoryLen {
		return false
	}
	limit, used := uint64(u32(memory[memorySendBuffer:])), uint64(u32(memory[memoryWriteQueued:]))
	return limit > 0 && 3*used >= 2*limit
}

// Offsets in bytes of SK_MEMINFO_SNDBUF and SK_MEMINFO_WMEM_QUEUED, and the length with both.
const (
	memorySendBuffer  = 12
	memoryWriteQueued = 20
	memoryLen         = 24
)

// Lengths in bytes of struct mptcp_info up to rcv_nxt, and up to the byte counters (6.5).
const (
	mptcpInfoLen        = 40
	mptcpInfoTrafficLen = 80
)

func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
