package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Log gives packets to the Logged of a group. Rules that follow decide about the packets.
func Log(group uint16) expr.Any {
	return &expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN, Group: group, Snaplen: loggedMost}
}

// loggedMost is the largest number of bytes of a packet that are delivered: an IPv6 header and the longest TCP header.
const loggedMost = 40 + 60

// Logged delivers packets that rules with Log match.
type Logged struct{ nl *netlink.Conn }

// From linux/netfilter/nfnetlink_log.h.
const (
	nfulnlMsgPacket = 0
	nfulnlMsgConfig = 1

	nfulaPayload    = 9
	nfulaCfgCmd     = 1
	nfulaCfgMode    = 2
	nfulaCfgQThresh = 5

	nfulnlCfgCmdBind = 1
	nfulnlCopyPacket = 2
)

// loggedRoom is the size of the receive buffer in bytes. If it is full, further packets are not delivered.
const loggedRoom = 4 << 20

// Listen delivers the packets of a group in the calling thread's network namespace. A group has one listener.
func Listen(group uint16) (*Logged, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("listen to logged packets: %w", err)
	}
	e := &encoder{b: binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, group)}
	e.bytes(nfulaCfgCmd, []byte{nfulnlCfgCmdBind})
	e.bytes(nfulaCfgMode, append(binary.BigEndian.AppendUint32(nil, loggedMost), nfulnlCopyPacket, 0))
	e.u32(nfulaCfgQThresh, 1) // each packet at once
	_, err = nl.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | nfulnlMsgConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   e.b,
	})
	if err == nil {
		err = nl.SetReadBuffer(loggedRoom)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to the packets of log group %d: %w", group, withFix(err)), nl.Close())
	}
	return &Logged{nl}, nil
}

// Receive waits for packets. It returns the beginnings of their IP packets, with whole headers. An error means that the
// Logged was closed.
func (l *Logged) Receive() ([][]byte, error) {
	messages, err := l.nl.Receive()
	if errors.Is(err, unix.ENOBUFS) { // some were not delivered
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("receive logged packets: %w", err)
	}
	var packets [][]byte
	for _, m := range messages {
		if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|nfulnlMsgPacket {
			continue
		}
		ad, err := attributesOf(m.Data)
		if err != nil {
			continue
		}
		for ad.Next() {
			if ad.Type() == nfulaPayload {
				packets = append(packets, ad.Bytes())
			}
		}
	}
	return packets, nil
}

// Close ends the delivery; a waiting Receive returns.
func (l *Logged) Close() error { return l.nl.Close() }
