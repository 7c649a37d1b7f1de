#!/bin/sh
# Adds a network namespace behind this host, by a link with Ethernet addresses, and prints the id of the process that holds it.
set -e
unshare --net sleep 3600 >/dev/null 2>&1 &
holder=$!
until [ "$(readlink /proc/$holder/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add lan type veth peer name lan0 netns $holder
ip address add 10.255.255.1/30 dev lan
ip link set lan up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 0 >/proc/sys/net/ipv4/icmp_ratelimit
nft 'table ip lan { chain postrouting { type nat hook postrouting priority srcnat; ip saddr 10.255.255.2 masquerade; }; }'
nsenter --net=/proc/$holder/ns/net sh -ec '
	ip link set lo up
	ip address add 10.255.255.2/30 dev lan0
	ip link set lan0 up
	ip route add default via 10.255.255.1'
echo $holder
