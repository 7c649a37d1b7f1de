package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The two marks.
const (
	packetMark = iota
	connectionMark
	marks
)

type markUse struct {
	MarkUse
	of int // which mark; of one that only compares, packetMark or connectionMark
}

// content describes the known content of a register of 32 bits.
type content struct {
	from     [marks]uint32 // bits that come from each mark
	fixed    uint32        // bits that a constant sets
	protocol bool          // the register has the number of the transport protocol
	swapped  bool          // the bytes are in the other order, for a comparison with a range
}

// any returns all bits that may be set.
func (v content) any() uint32 { return v.from[packetMark] | v.from[connectionMark] | v.fixed }

// Operations of bitwise, and its attributes since Linux 6.13 (linux/netfilter/nf_tables.h).
const (
	bitwiseMaskXor = 0
	bitwiseAnd     = 3
	bitwiseOp      = 6
	bitwiseSource2 = 8

	wholeMark = ^uint32(0)
)

// markUses follows the marks through the rule's registers. It stops where the rule restricts itself to a protocol other
// than TCP.
func (r rawRule) markUses() (uses []markUse) {
	registers := make(map[uint32]content)
	for _, x := range r.expressions {
		switch x.name {
		case "meta", "ct":
			if u, ok := x.loadOrSet(registers); ok {
				uses = append(uses, u)
			}
		case "immediate":
			to, _ := x.number(unix.NFTA_IMMEDIATE_DREG)
			n, err := x.data(unix.NFTA_IMMEDIATE_DATA)
			if err != nil {
				delete(registers, place(to)) // a verdict, or not a mark
				continue
			}
			registers[place(to)] = content{fixed: n}
		case "bitwise":
			x.bitwise(registers)
		case "cmp":
			from, _ := x.number(unix.NFTA_CMP_SREG)
			v := registers[place(from)]
			if v.protocol && x.otherProtocol() {
				return uses
			}
			n, err := x.data(unix.NFTA_CMP_DATA)
			if v.swapped {
				n = wholeMark // it may be compared with any value
			}
			for of, mask := range v.from {
				if mask != 0 && err == nil {
					uses = append(uses, markUse{MarkUse{Mask: mask, Value: n & mask}, of})
				}
			}
		case "match", "target":
			if u, ok := x.xtables(); ok {
				uses = append(uses, u)
			}
		case "byteorder":
			from, _ := x.number(unix.NFTA_BYTEORDER_SREG)
			to, _ := x.number(unix.NFTA_BYTEORDER_DREG)
			v := content{swapped: true}
			for of, mask := range registers[place(from)].from {
				if mask != 0 {
					v.from[of] = wholeMark
				}
			}
			registers[place(to)] = v
		case "lookup", "range":
			source := uint16(unix.NFTA_LOOKUP_SREG)
			if x.name == "range" {
				source = unix.NFTA_RANGE_SREG
			}
			from, _ := x.number(source)
			for of, mask := range registers[place(from)].from {
				if mask != 0 { // it may be compared with any value
					uses = append(uses, markUse{MarkUse{Mask: mask, Value: mask}, of})
				}
			}
			clear(registers)
		default: // the expression loads no mark
			clear(registers)
		}
	}
	return uses
}

// place returns the number of a 4-byte register. For a register of 16 bytes it returns the first 4-byte register in it.
func place(register uint32) uint32 {
	if register >= unix.NFT_REG_1 && register <= unix.NFT_REG_4 {
		return unix.NFT_REG32_00 + (register-unix.NFT_REG_1)*4
	}
	return register
}

// loadOrSet handles the expressions meta and ct. Only meta has the mark of the packet and the protocol.
func (x rawExpression) loadOrSet(registers map[uint32]content) (u markUse, ok bool) {
	key, keyOfMark, source, of := uint16(unix.NFTA_META_KEY), uint32(unix.NFT_META_MARK), uint16(unix.NFTA_META_SREG), packetMark
	if x.name == "ct" {
		key, keyOfMark, source, of = unix.NFTA_CT_KEY, unix.NFT_CT_MARK, unix.NFTA_CT_SREG, connectionMark
	}
	what, _ := x.number(key)
	if from, sets := x.number(source); sets {
		if what != keyOfMark {
			return u, false
		}
		v := registers[place(from)]
		return markUse{MarkUse{Mask: ^v.from[of] | v.fixed, Value: v.fixed, Sets: true}, of}, true
	}
	to, loads := x.number(unix.NFTA_META_DREG) // NFTA_CT_DREG has the same number
	if !loads {
		return u, false
	}
	v := content{protocol: x.name == "meta" && what == unix.NFT_META_L4PROTO}
	if what == keyOfMark {
		v.from[of] = wholeMark
	}
	registers[place(to)] = v
	return u, false
}

func (x rawExpression) bitwise(registers map[uint32]content) {
	from, _ := x.number(unix.NFTA_BITWISE_SREG)
	to, _ := x.number(unix.NFTA_BITWISE_DREG)
	v := registers[place(from)]
	operation, _ := x.number(bitwiseOp)
	other, two := x.number(bitwiseSource2)
	switch {
	case operation == bitwiseMaskXor:
		mask, err1 := x.data(unix.NFTA_BITWISE_MASK)
		xor, err2 := x.data(unix.NFTA_BITWISE_XOR)
		if err1 != nil || err2 != nil {
			v = content{} // the size is not that of a mark
			break
		}
		v = v.and(content{fixed: mask})
		v.fixed |= xor
	case two && operation == bitwiseAnd:
		v = v.and(registers[place(other)])
	case two: // or, xor
		w := registers[place(other)]
		v = content{from: [marks]uint32{v.from[0] | w.from[0], v.from[1] | w.from[1]}, fixed: v.fixed | w.fixed}
	default: // shifts
		v = content{}
	}
	registers[place(to)] = v
}

func (v content) and(w content) content {
	var and content
	for i := range and.from {
		and.from[i] = v.from[i]&w.any() | w.from[i]&v.any()
	}
	and.fixed = v.fixed & w.fixed
	return and
}

// otherProtocol reports whether a comparison of the protocol accepts only one other than TCP.
func (x rawExpression) otherProtocol() bool {
	operation, _ := x.number(unix.NFTA_CMP_OP)
	ad, err := bigEndian(x.attributes[unix.NFTA_CMP_DATA])
	var b []byte
	if err != nil || value(&b)(ad) != nil || len(b) != 1 {
		return false
	}
	return operation == unix.NFT_CMP_EQ && b[0] != unix.IPPROTO_TCP
}

// Modes of the target CONNMARK (linux/netfilter/xt_connmark.h).
const (
	connmarkSet = iota
	connmarkSave
	connmarkRestore
)

// xtables reads the matches and targets of iptables that use marks. The attributes of matches and targets have the same
// numbers, and the structures all begin with fields of 32 bits.
func (x rawExpression) xtables() (u markUse, ok bool) {
	name := x.attributes[unix.NFTA_MATCH_NAME]
	info := x.attributes[unix.NFTA_MATCH_INFO]
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(info[4*i:]) }
	text := string(name)
	if n := len(name); n > 0 && name[n-1] == 0 {
		text = string(name[:n-1])
	}
	revision, _ := x.number(unix.NFTA_MATCH_REV)
	switch {
	case x.name == "match" && text == "mark" && revision == 1 && len(info) >= 9:
		return markUse{MarkUse{Mask: word(1), Value: word(0)}, packetMark}, true
	case x.name == "match" && text == "connmark" && revision == 1 && len(info) >= 9:
		return markUse{MarkUse{Mask: word(1), Value: word(0)}, connectionMark}, true
	case x.name == "target" && text == "MARK" && revision == 2 && len(info) >= 8:
		return markUse{MarkUse{Mask: word(1) | word(0), Value: word(0), Sets: true}, packetMark}, true
	case x.name == "target" && text == "CONNMARK" && (revision == 1 || revision == 2) && len(info) >= 13:
		ctMark, ctMask, nfMask := word(0), word(1), word(2)
		switch info[12] {
		case connmarkSet:
			return markUse{MarkUse{Mask: ctMask | ctMark, Value: ctMark, Sets: true}, connectionMark}, true
		case connmarkSave:
			return markUse{MarkUse{Mask: ctMask | nfMask, Sets: true}, connectionMark}, true
		case connmarkRestore:
			return markUse{MarkUse{Mask: nfMask | ctMask, Sets: true}, packetMark}, true
		}
	}
	return u, false
}
